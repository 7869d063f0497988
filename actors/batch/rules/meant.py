"""Which instance a call means, so that a try of it that comes late changes nothing once more. Pure."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote, unquote

from msgspec.structs import replace

from actors.batch.rules.record import Instance
from actors.batch.rules.refusals import BatchRefused

MOST_CALLS = 16
"""Calls that a record knows, the latest ones."""


class Meant(NamedTuple):
    """Which instance a call is about, and which call it is. `created_ms`: of the instance, since a later one of its id
    is another. 0: whichever has the id. `nonce`: the same in each try of the call. Empty: it is tried once. A call of
    another verb is another one, though it has the same nonce."""

    created_ms: int = 0
    nonce: str = ""

    def is_done(self, record: Instance, verb: str) -> bool:
        """Return whether a try of the call was done. Raises BatchRefused if the record is another instance's."""
        if self.created_ms not in (0, record.created_ms):
            reason = f"the {record.instance_id} that was meant was deleted, and its id is another instance's now"
            raise BatchRefused(reason, code="not_found")
        return f"{verb} {self.nonce}" in record.calls

    def once(self, verb: str, move: Callable[[Instance], Instance]) -> Callable[[Instance], Instance]:
        """Return `move` such that it is done once for all tries of the call. Raises as `is_done`."""

        def moved(before: Instance) -> Instance:
            if self.is_done(before, verb) or (before.deleted_ms and self.nonce):
                return before
            after = move(before)
            return replace(after, calls=(*after.calls, f"{verb} {self.nonce}")[-MOST_CALLS:]) if self.nonce else after

        return moved


ANY = Meant()


def verb_for(verb: str, *items: Sequence[int]) -> str:
    """Return the verb of a call for these items. For others it is another call, though it has the same nonce."""
    named = repr([list(each) for each in items]).encode()
    return f"{verb}-{blake2b(named, digest_size=6).hexdigest()}" if any(items) else verb


def note_of(record: Instance) -> str:
    """Return what is kept of a deleted instance, in printable ASCII: the nonce of its submission, and the calls, since
    a late try of one may name the id alone."""
    return " ".join(quote(word, safe="") for word in (record.nonce or "-", *record.calls))


def called_before(note: str) -> tuple[str, tuple[str, ...]]:
    """Return the nonce and the calls that are in a note. They are the next instance's calls, too."""
    nonce, *calls = (unquote(word) for word in note.split(" "))
    return nonce, tuple(calls)
