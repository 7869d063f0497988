"""The fetch engine of one node: its actors, its sinks, the desk of sources."""
