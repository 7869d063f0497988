"""The mall: a simulated sales platform as a real HTTP server, with faults, that knows the truth about each order."""
