"""What flows, and the only code that talks to NATS."""
