"""Zones: a job runs in every zone over the shards that the zone owns, and shards move without losing a row."""
