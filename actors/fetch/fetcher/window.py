"""Reads one window: requests it from the platform, publishes the orders, and returns the outcome.

The order is: confirm the orders, store the digest, publish the event that the slice was read, return `WindowStored`.
With that the ledger completes the slice. A crash before it repeats the window. A repeat is harmless, because orders
carry their id and version. If the window is known to be incomplete, its orders are stored and it ends as `Short`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import count

import anyio
import msgspec
from msgspec.structs import replace

from actors.fetch.budget import Budgets, TooSlow
from actors.fetch.digests import Digests
from actors.fetch.fetch_events import late_orders, slice_completed
from actors.fetch.fetcher.clocks import PlatformClocks
from actors.fetch.fetcher.decisions import (
    STEP_MS,
    Ended,
    Failed,
    Hopeless,
    Misread,
    Missed,
    NotNow,
    Outcome,
    PlatformRefused,
    ReadSlice,
    Short,
    Throttled,
    TimedOut,
    TooWide,
    WindowStored,
    label_of,
)
from actors.fetch.fetcher.logins import Logins
from actors.fetch.fetcher.obeying import Obeying
from actors.fetch.fetcher.prefetch import Prefetching
from actors.fetch.fetcher.read_before import ReadBefore
from actors.fetch.fetcher.rows import (
    NewContents,
    pages_of,
    row_dead_letter,
    shortness,
    unsettled,
)
from actors.fetch.fetcher.session import IN_PLACE_MS, AttemptTime, PlatformSession, Stopped, shown
from actors.fetch.fetcher.unfinished import Batch, UnfinishedReading, UnfinishedReadings
from actors.fetch.grants import Grants
from actors.fetch.learning import LearnedLimits
from actors.fetch.ledgers import BrokenLedger, Contended, Ledgers, MissingLedger
from actors.fetch.rules.holding import had_readable
from actors.fetch.sources import SourceKey, Sources, UnknownSource, UnusableSource
from actors.runtime.actor import FATAL
from actors.runtime.bounds import WorkBounds
from actors.runtime.events import outgoing_event
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.measures import Measures
from actors.runtime.rules.slot_keys import key_reader
from actors.runtime.rules.texts import span_text
from actors.runtime.secrets import without_secrets
from actors.runtime.tracing import traces
from actors.runtime.transport import BadUrl, Transport
from platforms.adapter import Adapter, BadRow, Row
from platforms.bounds import Window
from platforms.errors import BadDeclaration, BrokenContract, Unreadable
from platforms.lists import begin_reading
from platforms.reading import ReadingResult
from streams.chance import chance
from streams.clock import Clock
from streams.errors import (
    MalformedHeader,
    MalformedSubject,
    Refused,
    RevisionConflict,
    StreamError,
    TooLarge,
    Unwritable,
)
from streams.messages.fetch import FetchEvent, ListedOrder, OrderPage, encode
from streams.messages.ids import dead_letter_message_id, order_page_message_id
from streams.publish.publisher import Outgoing, Publisher
from streams.subjects import Namespace

log = logging.getLogger(__name__)

STORE_AGAIN_MS = 5_000
"""A server that takes nothing (full, electing, down) is tried again after this."""
AVERAGED_OVER = 50
CLOCKS_MS = 60_000
"""How far the platform's clock and ours may differ for `unsettled`. A wrong guess costs a repeat."""
MUST_NOT_EXIST = {"Nats-Expected-Last-Subject-Sequence": "0"}


class _Attempt:
    """One attempt at a window: what it has read, once it has begun."""

    def __init__(self) -> None:
        self.progress: UnfinishedReading | None = None

    def spoil(self) -> None:
        """Begin anew the next time: the platform has answered against its own rules."""
        if self.progress is not None:
            self.progress.is_void = True


class WindowReader:
    """Reads windows for a node. All its slices share it."""

    def __init__(
        self,
        *,
        transport: Transport,
        ledgers: Ledgers,
        sources: Sources,
        publisher: Publisher,
        digests: Digests,
        grants: Grants,
        budgets: Budgets,
        measures: Measures,
        namespace: Namespace,
        clock: Clock,
        learned: LearnedLimits,
        bounds: WorkBounds,
    ) -> None:
        self._learned = learned
        self._bounds = bounds
        self._transport = transport
        self._ledgers = ledgers
        self._sources = sources
        self._publisher = publisher
        self._budgets = budgets
        self._measures = measures
        self._namespace = namespace
        self._clock = clock
        self._clocks = PlatformClocks()
        self._logins = Logins(sources, grants, transport, clock, self._clocks)
        self._kept = UnfinishedReadings()
        self._obeying = Obeying()
        self._before = ReadBefore(digests, sources)
        self._last_sent_ms = 0
        self.orders_a_message = 1.0
        """How many orders a message of this node has carried lately, on average."""
        self.orders_sent = 0

    async def read(self, work: ReadSlice) -> Ended:
        """Read the slice's window. Every foreseen trouble is an outcome. Raises FATAL errors."""
        attempt = _Attempt()
        outcome, upto_ms, rows, is_unproven = await self._outcome(work, attempt), 0, 0, False
        if attempt.progress is not None:
            upto_ms = await self._complete_part(work, attempt.progress, outcome)
            result = attempt.progress.reading.result
            rows, is_unproven = result.distinct, isinstance(outcome, WindowStored) and not result.is_proven
            outcome = await self._remember(work, attempt.progress, outcome, is_part=upto_ms > 0)
        if isinstance(outcome, WindowStored):
            self._budgets.rest(work.source)
        self._measures.slice_ended(work.source.platform, label_of(outcome), is_unproven=is_unproven)
        spread = 0.0 if isinstance(outcome, WindowStored) else chance()
        return Ended(work.source, work.slice, outcome, work.settings, spread, self._step_ms(work), upto_ms, rows)

    async def _complete_part(self, work: ReadSlice, progress: UnfinishedReading, outcome: Outcome) -> int:
        """Return the time before which the slice is read, although the attempt did not come to its end, once the event
        of that is stored. 0: none of it, as far as is known."""
        if not isinstance(outcome, TimedOut | TooWide | Throttled | NotNow | Failed | Missed):
            return 0
        upto_ms = progress.done_until_ms(self._step_ms(work))
        if not work.slice.start_ms < upto_ms < work.slice.end_ms or work.slice.short is not None:
            return 0
        part = replace(work, slice=replace(work.slice, end_ms=upto_ms))
        try:
            await self._before.store_fresh(part, progress)
            await self._store_events(part, progress.reading.result, progress.new_rows, progress.began_ms, is_whole=True)
        except FATAL:
            raise
        except StreamError as error:
            log.warning("fetcher.not_stored", extra=fields(source=str(work.source), error=str(error)))
            return 0
        return upto_ms

    async def _remember(
        self, work: ReadSlice, progress: UnfinishedReading, outcome: Outcome, *, is_part: bool
    ) -> Outcome:
        """Keep what was read: contents for every later reading, and after trouble that may pass the reading itself.
        Return what the outcome is then. `is_part`: a part of the slice is complete, and its rest is another slice."""
        if isinstance(progress.new, NewContents) and progress.new.has_more and self._is_unchanged(work, progress):
            await self._before.store_contents(work, progress, progress.new)
        if is_part and isinstance(outcome, TimedOut | TooWide):
            return TimedOut(f"{outcome.reason}; the next attempt goes on from there", goes_on=True)
        if is_part:
            return outcome
        outcome = progress.ended(work.slice, outcome)
        if isinstance(outcome, TimedOut | Failed | Missed | Throttled | NotNow):
            self._kept.keep(work, progress, self._clock.now_ms())
        return outcome

    async def _outcome(self, work: ReadSlice, attempt: _Attempt) -> Outcome:
        timeout_s = work.settings.timeout_ms / 1000
        scope = anyio.CancelScope(deadline=anyio.current_time() + timeout_s)
        time = AttemptTime(work.settings, scope)
        try:
            with scope:
                return await self._read(work, time, attempt)
            return TimedOut(f"not read within {timeout_s:g} s", is_missed=not time.was_answered)
        except Stopped as stopped:
            return stopped.outcome
        except (UnusableSource, BadDeclaration, BadUrl) as error:
            return PlatformRefused(str(error))
        except (UnknownSource, TooLarge, MalformedSubject, MalformedHeader, Unwritable) as error:
            return Failed(str(error))
        except BrokenContract as error:
            attempt.spoil()
            if isinstance(error, Unreadable) or not work.is_trusted:
                of_rows = isinstance(error, Unreadable) and error.is_of_rows
                return Misread(without_secrets(error.reason), shown(error.said), of_rows)
            return Failed(error.reason)
        except FATAL:
            raise
        except StreamError as error:  # only the server is at fault: no attempt is spent
            log.warning("fetcher.not_stored", extra=fields(source=str(work.source), error=str(error)))
            return NotNow(f"the server takes nothing: {error}", STORE_AGAIN_MS)

    async def _read(self, work: ReadSlice, time: AttemptTime, attempt: _Attempt) -> WindowStored | Short:
        started_ms = self._clock.now_ms()
        adapter = self._sources.adapter(work.source)
        await self._wait_for_clock(work, adapter, time)
        progress = attempt.progress = await self._begun(work, adapter)
        reading = progress.reading
        session = self._session(work, adapter, time)
        pages = count(1)
        async with Prefetching() as publish:
            for left in tuple(progress.unpublished):
                await self._pace(work, left, time)
                await publish(partial(self._publish, work, progress, left, next(pages)))
            while (ask := reading.next()) is not None:
                asked_ms = self._clock.now_ms()
                try:
                    rows = await session.request(reading, ask)
                except Stopped as stopped:
                    if isinstance(stopped.outcome, Hopeless):  # it may be too early to ask, by the platform's clock
                        self._check_clock(work, progress, session.said_ms, asked_ms)
                    raise
                if rows and not work.is_trusted:
                    await self._note_readable(work.source)
                self._check_source(work, progress)
                batch = self._taken(work, progress, rows, session.sent_ms)
                self._check_clock(work, progress, session.said_ms, asked_ms)
                reach("fetch")
                if batch is not None:
                    await self._pace(work, batch, time)
                    await publish(partial(self._publish, work, progress, batch, next(pages)))
        await self._wait_for_details(work, progress, session, time, next(pages))
        self._check_source(work, progress)
        self._obeying.checked(work.source, adapter, reading.obeys)
        if reading.bad:
            await self._set_aside(work, reading.bad)
        reach("publish")
        await self._before.store_fresh(work, progress)
        short = shortness(reading.result, work.slice.short)
        await self._store_events(work, reading.result, progress.new_rows, started_ms, is_whole=short is None)
        reach("tell")
        is_readable = bool(reading.result.distinct) if reading.result.distinct or reading.bad else None
        return replace(short or WindowStored(rows=reading.result.distinct), is_readable=is_readable)

    async def _wait_for_details(
        self, work: ReadSlice, progress: UnfinishedReading, session: PlatformSession, time: AttemptTime, number: int
    ) -> None:
        """Ask again for listed orders of which an earlier attempt found no details: a platform may know them later than
        its list does. Raises Stopped while some are absent and another attempt is left. Then they are bad rows, or, if
        they are most of the window, Unreadable: the fault is not theirs."""
        if progress.attempts and progress.absent:
            rows = progress.reading.feed_late(await session.details_of(progress.absent))
            batch = self._taken(work, progress, rows, session.sent_ms)
            if batch is not None:
                await self._pace(work, batch, time)
                await self._publish(work, progress, batch, number)
        absent = progress.absent
        reason = f"the platform lists {len(absent)} orders, and has no details of them yet"
        if absent and work.slice.attempt <= work.settings.retries:
            raise Stopped(Failed(reason))
        if progress.reading.lacks_many:
            raise Unreadable(reason, absent[0].body)

    async def _note_readable(self, source: SourceKey) -> None:
        """Note that the rows of a new source can be read. Only its first such answer is a write. What cannot be stored
        now is noted at the next answer."""
        try:
            ledger = self._ledgers.peek(source)
            if ledger is not None and had_readable(ledger) is not ledger:
                await self._ledgers.move(source, lambda ledger: (had_readable(ledger), None))
        except (Contended, MissingLedger, BrokenLedger, StreamError) as error:
            log.warning("fetcher.answer_not_noted", extra=fields(source=str(source), error=str(error)))

    async def _begun(self, work: ReadSlice, adapter: Adapter) -> UnfinishedReading:
        """Return the slice's unfinished reading, or a new one."""
        declared = adapter.declaration
        window, record = widened(work, declared.overlap_ms), self._sources.find(work.source)
        kept = self._kept.take(work, record, adapter, window, self._clock.now_ms())
        if kept is not None:
            return kept
        reading = begin_reading(
            adapter,
            window,
            sets_bad_aside=True,
            is_trusted=work.is_trusted,
            checks_window=self._obeying.wants_check(work.source, adapter),
            page_sizes=self._obeying.page_sizes(work.source, adapter),
        )
        new = await self._before.known(work, window, declared)
        fence, began_ms = work.slice.fence, self._clock.now_ms()
        return UnfinishedReading(adapter, window, reading, new, fence=fence, record=record, began_ms=began_ms)

    def _stamp_ms(self) -> int:
        """Return a time for a request: the version of its rows if the platform has none. Later requests get later ones.
        When the answer comes says less: it may have been on its way while this node stood still, and others asked."""
        self._last_sent_ms = max(self._clock.now_ms(), self._last_sent_ms + 1)
        return self._last_sent_ms

    def _session(self, work: ReadSlice, adapter: Adapter, time: AttemptTime) -> PlatformSession:
        return PlatformSession(
            work,
            adapter,
            self._logins.account(work.source),
            transport=self._transport,
            budgets=self._budgets,
            logins=self._logins,
            time=time,
            clock=self._clock,
            clocks=self._clocks,
            stamp=self._stamp_ms,
            learned=self._learned,
        )

    def _settle_ms(self, work: ReadSlice, adapter: Adapter) -> int:
        return max(work.settings.settle_ms, adapter.declaration.settle_ms)

    def _taken(self, work: ReadSlice, progress: UnfinishedReading, rows: list[Row], sent_ms: int) -> Batch | None:
        """Take the rows of an answer. Return what of them is to be published."""
        if progress.adapter.declaration.is_version_ordered:
            rows = unsettled(rows, self._settled_ms(work, progress, sent_ms))
        return progress.take(rows, sent_ms)

    def _settled_ms(self, work: ReadSlice, progress: UnfinishedReading, sent_ms: int) -> int:
        """Return the time up to which a version has settled that an answer lists. A window by changes ends there. One
        by creation lists later changes."""
        settled_ms = sent_ms - self._settle_ms(work, progress.adapter) - CLOCKS_MS
        return settled_ms if work.slice.is_look else max(settled_ms, progress.window.end_ms)

    async def _wait_for_clock(self, work: ReadSlice, adapter: Adapter, time: AttemptTime) -> None:
        """Wait until the slice has settled by the platform's clock, as far as it is known."""
        if work.slice.is_look:
            return  # it wants what has not settled, and proves nothing
        settle_ms = self._settle_ms(work, adapter)
        early_ms = self._clocks.early_ms(work.source, work.slice, settle_ms, self._clock.now_ms())
        if early_ms > IN_PLACE_MS:
            raise Stopped(
                NotNow(f"by the platform's clock it has not settled for another {span_text(early_ms)}", early_ms)
            )
        await time.wait(early_ms)

    def _check_clock(self, work: ReadSlice, progress: UnfinishedReading, said_ms: int | None, asked_ms: int) -> None:
        """Accept a response only if it was made after the slice had settled. An earlier one may list too little."""
        settle_ms = self._settle_ms(work, progress.adapter)
        early_ms = self._clocks.missing_ms(work.source, work.slice, settle_ms, said_ms=said_ms, asked_ms=asked_ms)
        if early_ms > 0 and not work.slice.is_look:
            progress.is_void = True
            raise Stopped(NotNow(f"the answer was made {span_text(early_ms)} before the window had settled", early_ms))

    def _check_source(self, work: ReadSlice, progress: UnfinishedReading) -> None:
        """Begin the window anew if the source was changed, and stop if it was removed, since the reading began. Its
        account may be another shop's by now."""
        if not self._is_unchanged(work, progress):
            progress.is_void = True
            raise Stopped(NotNow("the source was changed or removed while its window was read", 0))

    def _is_unchanged(self, work: ReadSlice, progress: UnfinishedReading) -> bool:
        return self._sources.find(work.source) == progress.record

    def _step_ms(self, work: ReadSlice) -> int:
        try:
            return max(STEP_MS, self._sources.adapter(work.source).declaration.window.bounds.step_ms)
        except (UnknownSource, UnusableSource):
            return STEP_MS

    async def _publish(self, work: ReadSlice, progress: UnfinishedReading, batch: Batch, number: int) -> None:
        """Publish a page. If versions have no order (a hash), the version becomes the time of the request:
        the platform's later state is the one that was asked for later."""
        platform, source = work.source.platform, work.source.source
        is_ordered = progress.adapter.declaration.is_version_ordered
        now_ms = self._clock.now_ms()
        subject = self._namespace.orders(platform, source)
        outgoing = []
        rows = self._in_region(work, batch.rows)
        for part_number, part in enumerate(pages_of(rows) if rows else ()):
            orders = tuple(
                ListedOrder(
                    order_key=row.key,
                    version=row.version if is_ordered else batch.read_ms,
                    modified_ms=now_ms if row.modified_ms is None else row.modified_ms,
                    body=msgspec.Raw(row.body),
                )
                for row in part
            )
            page = OrderPage(
                platform=platform, source=source, fetched_ms=now_ms, orders=orders, by_content=not is_ordered
            )
            names = (work.slice.slice_id, work.slice.fence, number, part_number)
            page_id = order_page_message_id(platform, source, *names)
            outgoing.append(Outgoing(subject, encode(page), page_id, traces.headers() or None))
        await self._store(outgoing)
        progress.published(batch)
        if outgoing:
            self.orders_a_message += (len(rows) / len(outgoing) - self.orders_a_message) / AVERAGED_OVER
            self.orders_sent += len(rows)
            self._measures.orders_published(platform, len(rows))

    def _in_region(self, work: ReadSlice, rows: list[Row]) -> list[Row]:
        """Leave out orders whose region belongs to another zone. They count as read: that zone stores them."""
        if not work.settings.region_key:
            return rows
        read, of = key_reader(work.settings.region_key), f"source {work.source}"
        return [row for row in rows if not self._bounds.stray(of, read(bytes(row.body)), work.settings.zone)]

    async def _set_aside(self, work: ReadSlice, rows: Sequence[BadRow]) -> None:
        """Make dead letters of unreadable rows. The other rows of the window were published. A row that already has its
        dead letter, from a neighbour's overlap or an earlier look, gets no other."""
        letters = [row_dead_letter(work, row, self._clock.now_ms()) for row in rows]
        subject = partial(self._namespace.dead, "fetch", work.source.platform)
        outgoing = [
            Outgoing(subject(one.id), encode(one), dead_letter_message_id(one, occurrence=one.first_ms), MUST_NOT_EXIST)
            for one in letters
        ]
        answers = await self._publisher.publish_many(outgoing)
        for letter, answer in zip(letters, answers, strict=True):
            if isinstance(answer, Refused) and not isinstance(answer, RevisionConflict):
                raise answer
            if not isinstance(answer, Refused):
                facts = fields(source=str(work.source), id=letter.id, reason=letter.reason)
                log.error("fetcher.row_set_aside", extra=facts)

    async def _pace(self, work: ReadSlice, batch: Batch, time: AttemptTime) -> None:
        """Wait until the batch may enter. A slice with more orders than may enter in its time is split."""
        if batch.is_paced:
            return
        orders = len(batch.rows)
        try:
            with self._budgets.orders(work.source, work.settings, orders) as spending:
                while (wait_ms := spending.take(most_ms=time.left_ms)) > 0:
                    await time.wait(wait_ms, spending.wait)
        except TooSlow as error:
            reason = f"{orders} orders may not enter at once: {error}"
            raise Stopped(TooWide(reason) if error.is_known else NotNow(reason, error.wait_ms)) from None
        batch.is_paced = True

    async def _store_events(
        self, work: ReadSlice, result: ReadingResult, new_rows: int, started_ms: int, *, is_whole: bool
    ) -> None:
        now_ms, piece = self._clock.now_ms(), work.slice
        events: list[FetchEvent] = []
        if is_whole and not work.slice.is_look:
            events.append(
                slice_completed(work.source, piece, result, started_ms=started_ms, now_ms=now_ms, new_rows=new_rows)
            )
        if work.slice.kind == "a" and new_rows:
            events.append(late_orders(work.source, piece, new_rows, now_ms))
        await self._store([outgoing_event(self._namespace, event) for event in events])

    async def _store(self, messages: list[Outgoing]) -> None:
        for answer in await self._publisher.publish_many(messages):
            if isinstance(answer, Refused):
                raise answer


def widened(work: ReadSlice, overlap_ms: int) -> Window:
    """Return the window to request: the slice, and the overlaps before and after it."""
    before = max(work.settings.overlap_before_ms, overlap_ms)
    return Window(work.slice.start_ms - before, work.slice.end_ms + work.settings.overlap_after_ms)
