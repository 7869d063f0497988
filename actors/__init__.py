"""The system, a folder for each engine, and the runtime that they share."""
