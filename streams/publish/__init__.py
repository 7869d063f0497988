"""Messages into streams, each with a certain outcome."""
