"""The delay queue of one node: its actors, its doors, the handlers of its app."""
