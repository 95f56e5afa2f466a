"""Scoring in shards on Ray."""
