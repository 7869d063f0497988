"""The measured claims."""
