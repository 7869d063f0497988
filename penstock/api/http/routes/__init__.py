"""What each address does, once a request is admitted."""
