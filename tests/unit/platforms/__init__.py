"""Adapters, readers and the mall's inner parts: no socket."""
