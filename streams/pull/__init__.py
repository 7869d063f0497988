"""Messages from consumers, their answers, and how many wait."""
