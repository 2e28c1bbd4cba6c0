"""Tagging folders, lists and archives: sources are cut into shards, shards become parts, parts one table."""
