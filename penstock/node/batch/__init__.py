"""The batches of one node: its actors, its archive, the callbacks of batches."""
