"""The HTTP gateway: jobs for every language that speaks HTTP and JSON, in any node with the role `gateway`.

From outside to inside: `actor.py` listens, `connections.py` limits the cost of one client, `door.py` checks each
request and its caller, and `app.py` finds the operation. `queue_protocol.py`, `jobs.py`, `receipts.py`, `topics.py` and
`push.py` carry it out at the job desk. Tokens are in `tokens.py`, which the command line uses too.
"""
