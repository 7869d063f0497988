"""Notices to an administrator: by log, webhook and mail, each until it is taken."""
