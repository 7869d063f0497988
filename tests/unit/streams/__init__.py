"""The broker layer's pure rules."""
