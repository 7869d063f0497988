"""Which call of a client is served now, so that a late try of it changes a record only once.

A client that gets no answer tries its call again, perhaps at another node. The first try may still be under way there,
on a link that stands still or in a process that was stopped, and may come to its write after the caller has made
another call. So all tries of a call have one name, and a record keeps the marks of the last calls that changed it
(`KEPT`). They are in a header of its message, so the value stays as people write it. What people write themselves
has no marks, and forgets those before.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b

CALL_HEADER = "Penstock-Call"
"""Of a request that is not the first try of its call: the name of the first."""
KEPT_HEADER = "Penstock-Calls"
"""Of a record: the marks of the calls that changed it, the latest last."""
KEPT = 16
_call: ContextVar[str] = ContextVar("call", default="")


@contextmanager
def serving(call: str) -> Iterator[None]:
    """Serve a call in this block. `call`: its name, which no other call has. Empty: it is tried once."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def mark_of(change: object) -> str:
    """Return the mark of this change by the call that is served. Another change by the same call has another mark.
    Empty: no call is served."""
    call = _call.get()
    return blake2b(f"{call}\0{change!r}".encode(errors="replace"), digest_size=9).hexdigest() if call else ""


def kept_with(marks: Sequence[str], mark: str) -> str:
    """Return the header of a record with one mark more. An empty mark is none."""
    return " ".join([each for each in (*marks, mark) if each][-KEPT:])
