"""The zones of one node: the shard map, the hub, topics that run in each zone."""
