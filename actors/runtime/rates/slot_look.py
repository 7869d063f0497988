"""Asks the governor who has the slots of a key, and under which keys slots are taken."""

import msgspec

from actors.runtime.actor import FATAL
from actors.runtime.rules.slot_keys import full_key
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.messages.rates import ANSWER_S
from streams.messages.slots import ListSlots, LookAtSlots, SlotsListed, decode_listed, decode_seen


class SlotLook:
    """One node's look. `owner` of a key: `jobs.<topic>` or `batch.<task>`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def full(self, owner: str, key: str, most: int) -> str:
        """Return that a key is full and who has its slots, in words. Empty: a slot is free, or no governor answers."""
        ask = msgspec.json.encode(LookAtSlots(key=f"{owner}:{key}"))
        try:
            message = await self._connection.request(self._connection.namespace.rates(), ask, timeout_s=ANSWER_S)
            return full_key(key, most, decode_seen(message.payload).holders)
        except FATAL:
            raise
        except StreamError:
            return ""

    async def listed(self, most: int) -> SlotsListed:
        """Return under which keys slots are taken. None, if no governor answers."""
        ask = msgspec.json.encode(ListSlots(most=most))
        try:
            message = await self._connection.request(self._connection.namespace.rates(), ask, timeout_s=ANSWER_S)
            return decode_listed(message.payload)
        except FATAL:
            raise
        except StreamError:
            return SlotsListed()
