"""Sheets that people send and get: xlsx, csv, jsonl (and parquet, to read), in a limited process and little memory."""
