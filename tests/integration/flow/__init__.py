"""Batches on a real server."""
