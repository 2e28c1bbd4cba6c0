"""Tagging an archive on a Ray cluster: what to tag, the workers, and the folder of Parquet shards."""
