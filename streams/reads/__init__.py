"""Stored messages read without a consumer: of a subject, of many, page by page."""
