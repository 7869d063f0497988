"""The system, one file an actor; the loop they share; the supervisor."""
