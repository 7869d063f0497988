"""The receipt of a reservation: text that its holder keeps and returns, and need not understand.

`<topic>.<key>.<sequence>.<TTR end>.<mark>.<nonce>`: the sequence is the fence at the moment of the hand-out. A touch
gives the reservation another sequence and another end, but keeps the mark, by which the receipt is known then. The
nonce is the add's, if the end of the job needs no other fact. Without it the job must be read before it is ended.
"""

import re
from typing import NamedTuple

from streams.subjects import TOKEN

_RECEIPT = re.compile(
    rf"({TOKEN.pattern})\.({TOKEN.pattern})\.([0-9]{{1,19}})\.([0-9]{{1,16}})\.([0-9a-f]{{12}})(?:\.([~A-Za-z0-9_-]{{1,40}}))?",
    re.ASCII,
)
_SHOWN = 80
_BY_ID = "~"


class BadReceipt(ValueError):
    """A text that is no receipt."""


class JobReceipt(NamedTuple):
    """A parsed receipt. `until_ms`: the TTR's first end, by the server's clock."""

    topic: str
    key: str
    seq: int
    until_ms: int
    mark: str
    nonce: str = ""

    def __str__(self) -> str:
        plain = f"{self.topic}.{self.key}.{self.seq}.{self.until_ms}.{self.mark}"
        return f"{plain}.{self.nonce}" if self.nonce else plain


def by_id(receipt: JobReceipt) -> JobReceipt:
    """Return the receipt of somebody else, who ends this hold by the job's id: its own finish is no repeat of that."""
    return receipt._replace(mark=receipt.mark + _BY_ID)


def hold_of(receipt: JobReceipt) -> str:
    """Return the mark of the hold that it ends."""
    return receipt.mark.removesuffix(_BY_ID)


def read_receipt(text: str) -> JobReceipt:
    """Return the receipt, or raise BadReceipt."""
    found = _RECEIPT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        shown = ascii(text)
        raise BadReceipt(
            f"{shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'} is no receipt; use the one given by reserve"
        )
    topic, key, seq, until_ms, mark, nonce = found.groups()
    return JobReceipt(topic, key, int(seq), int(until_ms), mark, nonce or "")
