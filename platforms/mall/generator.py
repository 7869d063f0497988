"""Makes a shop's orders: every version of each, when it was made and when the platform begins to list it.

Pure: one plan gives the same events and the same bytes for good. Half of what makes order APIs hard is here: equal
times, orders that change (and so leave the window that they were in), and versions that are listed late.
"""

from __future__ import annotations

import json
import random  # noqa: TID251 - a seeded generator is this file's whole point
import zlib
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]

_MOST_VERSIONS = 6
_FILLERS = 64
_MEET = 10
_LONGEST_TICK_MS = 10_000
_STATES = ("created", "paid", "packed", "sent", "received", "closed")


class Plan(Struct, frozen=True):
    """One shop. Orders of the history lie in [start - history, start), live ones and late changes in [start, start +
    live). Times are milliseconds of the mall's own clock.

    late_share of all versions are listed up to late_ms after their own time, very_late_share up to very_late_ms. Keep
    late_ms below the settling delay and very_late_ms above it. `crowds` times, `crowd` orders that never change share
    one whole second of the history. The changes of frozen_share of all orders leave their listed time as it was."""

    shop: str
    seed: int
    orders: Count
    start_ms: int
    history_ms: Annotated[int, Meta(ge=1)] = 7_200_000
    live_ms: Count = 0
    live_share: Share = 0.3
    change_share: Share = 0.35
    late_share: Share = 0.1
    late_ms: Count = 1_500
    very_late_share: Share = 0.0
    very_late_ms: Count = 0
    tie_share: Share = 0.1
    crowd: Count = 0
    crowds: Count = 1
    frozen_share: Share = 0.0

    @property
    def end_ms(self) -> int:
        """The end of all new orders and changes. Late listings may still come."""
        return self.start_ms + self.live_ms


class Event(NamedTuple):
    """The platform begins to list a version of an order. Sorts by that moment."""

    visible_ms: int
    modified_ms: int
    number: int
    version: int


class MallOrder(NamedTuple):
    """The last version of an order. `checksum` is the CRC-32 of its bytes."""

    key: str
    version: int
    modified_ms: int
    visible_ms: int
    checksum: int


def make_events(plan: Plan) -> list[Event]:
    """Return every version of every order of the plan, in the order in which they are first listed."""
    chance = random.Random(f"{plan.seed}/{plan.shop}")
    frozen = random.Random(f"{plan.seed}/{plan.shop}/frozen")
    live_orders = round(plan.orders * plan.live_share) if plan.live_ms else 0
    events: list[Event] = []
    for number in range(plan.orders):
        if number < plan.crowd * plan.crowds:
            at_ms = _crowd_ms(plan, number // plan.crowd)
            events.append(Event(at_ms, at_ms, number, 1))
            continue
        is_live = number >= plan.orders - live_orders
        earliest, length = (
            (plan.start_ms, plan.live_ms) if is_live else (plan.start_ms - plan.history_ms, plan.history_ms)
        )
        is_frozen, first_ms = frozen.random() < plan.frozen_share, 0
        for version, changed_ms in enumerate(_times(plan, chance, earliest + chance.randrange(length)), start=1):
            first_ms = first_ms or changed_ms
            listed_ms = first_ms if is_frozen else changed_ms
            events.append(Event(changed_ms + _delay(plan, chance), listed_ms, number, version))
    events.sort()
    return events


def _crowd_ms(plan: Plan, crowd_no: int) -> int:
    at_ms = plan.start_ms - plan.history_ms + plan.history_ms * (crowd_no + 1) // (plan.crowds + 1)
    return at_ms // 1000 * 1000


def _times(plan: Plan, chance: random.Random, created_ms: int) -> Iterator[int]:
    """Yield the times of one order's versions, strictly rising, before the plan's end."""
    at, least = created_ms, plan.start_ms - plan.history_ms
    for _ in range(_MOST_VERSIONS):
        tick = _tick_ms(plan, is_live=at >= plan.start_ms)
        if chance.random() < plan.tie_share and at // tick * tick >= least:
            at = at // tick * tick
        yield at
        if chance.random() >= plan.change_share:
            return
        gap = chance.expovariate(1) * (plan.history_ms if at < plan.start_ms else plan.live_ms) / 6
        least = at + 1
        at = least + int(gap)
        if at >= plan.end_ms:
            return


def _tick_ms(plan: Plan, *, is_live: bool) -> int:
    """Return the distance between the moments that orders share, so that about ten orders share one. No split could
    read more orders at one moment than fit a page."""
    share = plan.live_share if is_live else 1 - plan.live_share if plan.live_ms else 1.0
    sharing = max(1.0, plan.orders * share * plan.tie_share)
    return max(1, min(_LONGEST_TICK_MS, int((plan.live_ms if is_live else plan.history_ms) * _MEET / sharing)))


def _delay(plan: Plan, chance: random.Random) -> int:
    draw = chance.random()
    if draw < plan.very_late_share:
        return chance.randint(plan.late_ms, max(plan.late_ms, plan.very_late_ms))
    return chance.randint(0, plan.late_ms) if draw < plan.very_late_share + plan.late_share else 0


def last_orders(plan: Plan, events: list[Event]) -> list[MallOrder]:
    """Return each order as it is in the end, by number."""
    last: dict[int, Event] = {}
    for event in events:
        if event.number not in last or event.version > last[event.number].version:
            last[event.number] = event
    shop = plan.shop.encode()
    return [
        MallOrder(
            order_key(plan.shop, number),
            event.version,
            event.modified_ms,
            event.visible_ms,
            zlib.crc32(order_body(shop, number, event.version, event.modified_ms)),
        )
        for number, event in sorted(last.items())
    ]


def order_key(shop: str, number: int) -> str:
    return f"{shop}-{number:07d}"


def order_body(shop: bytes, number: int, version: int, modified_ms: int, extra: bytes = b"") -> bytes:
    """Return the order as the platform lists it, about 600 bytes. `extra` is more JSON fields, each with its comma."""
    filler = _BODIES[(number * 7 + version) % _FILLERS]
    return b'{"id":"%b-%07d","version":%d,"modified_ms":%d,%b%b' % (shop, number, version, modified_ms, extra, filler)


def _filler(number: int) -> bytes:
    chance = random.Random(number)
    items = [
        {
            "sku": f"SKU-{chance.randrange(10**8):08d}",
            "title": chance.choice(
                ["Tea, loose leaf, 250 g", "茶壶 紫砂 200 ml", "Kettle 1,7 l", "Teacup “Blue”, set of 6"]
            ),
            "quantity": chance.randint(1, 5),
            "price": f"{chance.randint(99, 99999) / 100:.2f}",
        }
        for _ in range(chance.randint(2, 4))
    ]
    fields = {
        "state": chance.choice(_STATES),
        "currency": "CNY",
        "total": f"{chance.randint(999, 999999) / 100:.2f}",
        "items": items,
        "buyer": {"name": "buyer, hidden", "phone": "***", "address": "hidden by the platform"},
        "remark": chance.choice(["", "please ring twice", "発票 needed", "leave with the neighbour"]),
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()[1:]


_BODIES = [_filler(number) for number in range(_FILLERS)]
