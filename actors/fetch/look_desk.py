"""The desk of looks: takes hints that a source has something new, and has the engine look at a window now.

In: hints, from the gateway and the service. Out: the source's ledger, by compare-and-set (rules/looks.py). The
allocator cuts the look as soon as the ledger says so. State: none. A repeated hint is one that waits already, and needs
no write and no request to the server. So a storm of hints costs a write or two for each look. When it cannot go on: the
caller gets the error, and polling reads the orders in its turn.
"""

from __future__ import annotations

from msgspec import Struct

from actors.fetch.ledgers import Ledgers
from actors.fetch.rules.ledger import Ledger, LookWindow
from actors.fetch.rules.looks import ask_look, covers, look_due_ms, look_every_ms, look_window
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.tuning import Lengths
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.slice_allocator import lengths_of, with_declared
from actors.fetch.sources import SourceKey, Sources, UnknownSource
from platforms.adapter import Declaration
from streams.clock import Clock


class LookView(Struct, frozen=True, kw_only=True):
    """A hint that was taken. The look reads from `start_ms` on, up to `end_ms`. `None`: up to the moment of the look.
    It begins at `due_ms` at the earliest. `is_new`: no earlier hint had asked for it."""

    source: str
    start_ms: int
    end_ms: int | None
    due_ms: int
    is_new: bool


def lengths_for(declared: Declaration, settings: FetchSettings) -> Lengths:
    return lengths_of(declared, with_declared(settings, declared))


def view_of(
    source: SourceKey, ledger: Ledger, window: LookWindow, lengths: Lengths, now_ms: int, *, is_new: bool
) -> LookView:
    """Return what the caller of a hint is told. The look that waits has it by then."""
    due_ms = look_due_ms(ledger, lengths)
    if due_ms is None:  # its predecessor is not over yet
        due_ms = (ledger.hints.began_ms if ledger.hints is not None else now_ms) + look_every_ms(lengths)
    return LookView(
        source=str(source),
        start_ms=window.start_ms,
        end_ms=window.end_ms or None,
        due_ms=max(now_ms, due_ms),
        is_new=is_new,
    )


class LookDesk:
    """Takes hints on one node."""

    def __init__(self, ledgers: Ledgers, sources: Sources, settings: LiveSettings, clock: Clock) -> None:
        self._ledgers = ledgers
        self._sources = sources
        self._settings = settings
        self._clock = clock

    async def look(self, key: SourceKey, *, start_ms: int | None = None, end_ms: int | None = None) -> LookView:
        """Have a source looked at. Raises BadLook, UnknownSource, UnusableSource, and as `Ledgers.move`."""
        if key not in self._sources:
            raise UnknownSource(f"no source {key}; `penstock sources list` shows all")
        settings = self._settings.current(key.platform, key.source)
        lengths = lengths_for(self._sources.adapter(key).declaration, settings)
        now_ms, known = self._clock.now_ms(), self._ledgers.peek(key) if self._ledgers.is_followed else None
        if known is not None and known.state == "running":
            window, due_ms = look_window(known, start_ms, end_ms, now_ms), look_due_ms(known, lengths)
            if covers(known, window) and (due_ms is None or due_ms > now_ms):
                return view_of(key, known, window, lengths, now_ms, is_new=False)

        def move(ledger: Ledger) -> tuple[Ledger, LookView]:
            window = look_window(ledger, start_ms, end_ms, now_ms)
            after = ask_look(ledger, window)
            return after, view_of(key, after, window, lengths, now_ms, is_new=after is not ledger)

        return await self._ledgers.move(key, move, tries=settings.claim_retries)
