"""Keys and files that the server holds: read, written by compare-and-set, followed, leased."""
