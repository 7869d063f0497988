"""Where a sink puts orders: a database by SQL, or a function of the user's own."""
