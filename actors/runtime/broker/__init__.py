"""What a node watches of the server: its store, its cluster, its consumers."""
