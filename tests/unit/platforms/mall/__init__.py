"""The mall's inner parts: orders, shelf, bounds, faults."""
