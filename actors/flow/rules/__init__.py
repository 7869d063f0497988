"""What the governor decides. Pure."""
