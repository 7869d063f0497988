"""The nats-server that a laptop, a demo or a test starts for itself."""
