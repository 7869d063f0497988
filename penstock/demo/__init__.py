"""`penstock demo`: simulated shops, real everything else, nodes that are killed, and a comparison at the end."""
