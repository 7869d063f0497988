"""What travels: the messages of each engine, and the ids that repeats carry."""
