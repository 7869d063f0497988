"""The adapter kit: one file for each outside service."""
