"""The broker layer on a real nats-server."""
