"""The fetch engine's events, made from its records."""

from __future__ import annotations

from actors.fetch.progress import Stuck
from actors.fetch.rules.ledger import Hole, OpenSlice, Outage
from actors.fetch.sources import SourceKey
from platforms.reading import ReadingResult
from streams.messages.fetch import (
    ConsumerStuck,
    HoleMade,
    LateOrders,
    LedgerUnusable,
    SliceCompleted,
    SliceFailed,
    SliceSplit,
    SourceDown,
    SourceParked,
    SourceThrottled,
    SourceUp,
    WatermarkLag,
)


def slice_completed(
    source: SourceKey, held: OpenSlice, result: ReadingResult, *, started_ms: int, now_ms: int, new_rows: int
) -> SliceCompleted:
    return SliceCompleted(
        platform=source.platform,
        source=source.source,
        slice_id=held.slice_id,
        start_ms=held.start_ms,
        end_ms=held.end_ms,
        attempt=held.attempt,
        fence=held.fence,
        node=held.holder,
        started_ms=started_ms,
        finished_ms=now_ms,
        rows=result.distinct,
        new_rows=new_rows,
        requests=result.requests,
        is_proven=result.is_proven,
    )


def slice_failed(source: SourceKey, held: OpenSlice, again: OpenSlice, now_ms: int) -> SliceFailed:
    """`held`: the slice as it failed. `again`: the slice as it waits for its next attempt."""
    return SliceFailed(
        platform=source.platform,
        source=source.source,
        slice_id=held.slice_id,
        start_ms=held.start_ms,
        end_ms=held.end_ms,
        attempt=held.attempt,
        fence=held.fence,
        node=held.holder,
        at_ms=now_ms,
        reason=again.reason,
        not_before_ms=again.not_before_ms,
    )


def slice_split(
    source: SourceKey, held: OpenSlice, parts: tuple[OpenSlice, ...], reason: str, now_ms: int
) -> SliceSplit:
    return SliceSplit(
        platform=source.platform,
        source=source.source,
        slice_id=held.slice_id,
        start_ms=held.start_ms,
        end_ms=held.end_ms,
        fence=held.fence,
        node=held.holder,
        at_ms=now_ms,
        reason=reason,
        parts=tuple(part.slice_id for part in parts),
    )


def source_throttled(source: SourceKey, hold_until_ms: int, reason: str, now_ms: int) -> SourceThrottled:
    return SourceThrottled(
        platform=source.platform, source=source.source, at_ms=now_ms, hold_until_ms=hold_until_ms, reason=reason
    )


def source_parked(source: SourceKey, reason: str, now_ms: int) -> SourceParked:
    return SourceParked(platform=source.platform, source=source.source, at_ms=now_ms, reason=reason)


def source_down(source: SourceKey, outage: Outage) -> SourceDown:
    return SourceDown(platform=source.platform, source=source.source, at_ms=outage.since_ms, reason=outage.reason)


def source_up(source: SourceKey, outage: Outage) -> SourceUp:
    return SourceUp(platform=source.platform, source=source.source, at_ms=outage.over_ms, down_ms=outage.since_ms)


def hole_made(source: SourceKey, hole: Hole, now_ms: int) -> HoleMade:
    return HoleMade(
        platform=source.platform,
        source=source.source,
        slice_id=hole.slice_id,
        start_ms=hole.start_ms,
        end_ms=hole.end_ms,
        attempts=hole.attempts,
        at_ms=now_ms,
        reason=hole.reason,
        missing=hole.short.missing if hole.short else 0,
    )


def late_orders(source: SourceKey, held: OpenSlice, count: int, now_ms: int) -> LateOrders:
    return LateOrders(
        platform=source.platform,
        source=source.source,
        slice_id=held.slice_id,
        start_ms=held.start_ms,
        end_ms=held.end_ms,
        at_ms=now_ms,
        count=count,
        latest_by_ms=now_ms - held.start_ms,
    )


def watermark_lag(source: SourceKey, watermark_ms: int, lag_ms: int, now_ms: int, *, is_over: bool) -> WatermarkLag:
    return WatermarkLag(
        platform=source.platform,
        source=source.source,
        at_ms=now_ms,
        watermark_ms=watermark_ms,
        lag_ms=lag_ms,
        is_over=is_over,
    )


def ledger_unusable(source: SourceKey, reason: str, now_ms: int, *, is_over: bool) -> LedgerUnusable:
    return LedgerUnusable(platform=source.platform, source=source.source, at_ms=now_ms, reason=reason, is_over=is_over)


def consumer_stuck(stuck: Stuck, now_ms: int) -> ConsumerStuck:
    return ConsumerStuck(
        stream=stuck.stream,
        consumer=stuck.consumer,
        at_ms=now_ms,
        since_ms=now_ms - round(stuck.for_s * 1000),
        pending=stuck.pending,
        is_over=stuck.is_over,
    )
