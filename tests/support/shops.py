"""A shop of a mall as a source, and its orders read to the end."""

from __future__ import annotations

from typing import Any

from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.ledger import faults as broken_rules
from actors.fetch.sources import SourceKey
from platforms.mall.server import Mall
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.engine import Node, add_source, history_start_ms, ledger_when

SHOP = SourceKey("mall", "s1")


async def add_shop(
    connection: Connection, publisher: Publisher, mall: Mall, source: SourceKey = SHOP, **own: Any
) -> None:
    """Add a source that reads a shop from where the mall's orders begin."""
    own = {"adapter": "mall", "start_ms": history_start_ms(mall), "slice": "20s", **own}
    await add_source(connection, publisher, source, url=mall.url, **own)


def last_ms(mall: Mall) -> int:
    """Return when an order of the mall changes for the last time."""
    return max(event.modified_ms for shop in mall.shops.values() for event in shop.events)


async def read_up(node: Node, mall: Mall, source: SourceKey = SHOP, within_s: float = 30) -> Ledger:
    """Wait until everything that the mall ever lists has been read; return the ledger."""
    end_ms = last_ms(mall)
    ledger = await ledger_when(node.engine, source, lambda ledger: ledger.watermark_ms > end_ms, within_s=within_s)
    assert broken_rules(ledger) == []
    return ledger
