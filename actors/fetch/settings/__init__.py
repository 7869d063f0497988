"""The settings of fetching: their levels, kept, followed and changed."""
