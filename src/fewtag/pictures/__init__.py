"""Encoded pictures: found, read, decoded, squashed to squares."""
