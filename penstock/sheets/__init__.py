"""Sheets that people send and get: xlsx, csv and jsonl, read in a limited process and written in constant memory."""
