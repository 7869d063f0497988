"""Job worker: runs the node's own handlers on the ready jobs of their topics. `worker.py` is where to start reading."""
