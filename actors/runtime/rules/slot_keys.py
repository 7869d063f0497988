"""Which key a call runs under: what a dotted path finds in a JSON body, as a short text. Pure."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct

from actors.runtime.rules.setting_values import BadSetting, nearest
from actors.runtime.rules.texts import some_of
from streams.messages.slots import MOST_SLOTS, WhenFull

WHEN_FULL: tuple[WhenFull, ...] = get_args(WhenFull)
LONGEST_PATH = 200
LONGEST_KEY = 80
"""Characters of a key. A longer one is cut, and told from others by a digest."""
_NAMED = 40
MOST_HOLDERS = 3
"""Nodes that a text names."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Slots(Struct, frozen=True):
    """At most `most` calls at once under each key, in the whole cluster. `key`: a dotted path into the JSON body, as
    `merchant.id`. Empty: all calls are under one key. `when_full`: what becomes of a call whose key is full. `queue`:
    it waits. `drop_newest`: it ends as dropped. `cancel_running`: it runs, and the call that has run longest under the
    key is cancelled."""

    most: int
    key: str = ""
    when_full: WhenFull = "queue"


def check_slots(slots: Slots) -> Slots:
    """Return the slots. Raises BadSetting."""
    most = slots.most
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_SLOTS:
        raise BadSetting("slots", most, "is out of range", f"write 1 to {MOST_SLOTS}")
    check_path("slot_key", slots.key)
    check_when_full("when_full", slots.when_full)
    return slots


def full_key(key: str, most: int, holders: Sequence[tuple[str, int]]) -> str:
    """Return that all slots of a key are taken, and by which nodes, in words. Empty: one is free."""
    if sum(count for _, count in holders) < most:
        return ""
    of = f"its key {key!r}" if key else "its key"
    are = "the one slot" if most == 1 else f"all {most} slots"
    named = some_of([f"{node} has {count}" for node, count in holders], MOST_HOLDERS, "more nodes have the others")
    return f"{are} of {of} {'is' if most == 1 else 'are'} taken: {named}"


def check_path(name: str, value: object) -> str:
    """Return a path. Raises BadSetting."""
    if not isinstance(value, str) or len(value) > LONGEST_PATH or not value.isprintable():
        raise BadSetting(name, value, "is no path", f"write up to {LONGEST_PATH} printable characters, as merchant.id")
    if value and not all(value.split(".")):
        raise BadSetting(name, value, "has an empty part", "write names with single dots between them, as merchant.id")
    return value


def check_when_full(name: str, value: object) -> WhenFull:
    """Return what becomes of a call whose key is full. Raises BadSetting."""
    for known in WHEN_FULL:
        if value == known:
            return known
    raise BadSetting(name, value, "is not known", nearest(str(value), list(WHEN_FULL)))


def key_reader(path: str) -> Callable[[bytes], str]:
    """Return a function from a JSON body to the key at the path. A part of the path that is a number also finds a place
    in a list. What is not there, and null, is the empty key."""
    parts = path.split(".") if path else []

    def read(body: bytes) -> str:
        try:
            for part in parts:
                body = _inner(body, part)
            return _text(_any.decode(body))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError):
            return ""

    return read if parts else lambda _body: ""


def _inner(body: bytes, part: str) -> bytes:
    if part.isdecimal() and bytes(memoryview(body)[:64]).lstrip().startswith(b"["):
        return _list.decode(body)[int(part)]
    return _object.decode(body)[part]


def _text(value: object) -> str:
    """Return the key of a value. A number and the text of that number are the same key."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
    if len(text) <= LONGEST_KEY and text.isprintable():
        return text
    named = "".join(sign if sign.isprintable() else " " for sign in text[:_NAMED])
    return f"{named}~{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
