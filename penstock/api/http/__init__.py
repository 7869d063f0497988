"""The HTTP gateway: jobs for every language that speaks HTTP and JSON, in any node with the role `gateway`.

From outside to inside: `actor.py` listens, `connections.py` bounds what one client costs, `door.py` checks each request
and who makes it, `app.py` finds the operation, and `queue_protocol.py`, `jobs.py`, `receipts.py`, `topics.py` and
`push.py` carry it out at the job desk. Tokens are in `tokens.py`; the command line uses it too.
"""
