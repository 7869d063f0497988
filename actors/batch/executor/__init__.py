"""Runs the steps and items of batches in a process that serves their tasks."""
