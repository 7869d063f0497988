"""The fetch engine on a real server and real HTTP."""
