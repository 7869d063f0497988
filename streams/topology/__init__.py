"""The streams, buckets and consumers that have to be on the server."""
