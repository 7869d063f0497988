"""The flows of one node: the governor, their loads, rounds and rows."""
