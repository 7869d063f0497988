"""Questions of a trial whose answers are known: the same window in two halves, windows that begin and end exactly at an
order's time, and a window that is still to come."""

from typing import NamedTuple

from penstock.admin.trial_client import TrialClient, TrialRefused
from penstock.admin.trial_result import AdapterTrial, TrialHalves
from penstock.times import span_text, time_text
from platforms.bounds import Window
from platforms.diagnosis import sent
from platforms.errors import PlatformError
from platforms.page_check import PageSize
from platforms.reading import Reading

__all__ = ["TrialWindow", "ignored_hint", "read_window", "try_bounds", "try_halves", "try_zone"]

SOON_MS, OLD_MS, FAR_MS = 900_000, 3_600_000, 14 * 3_600_000


class TrialWindow(NamedTuple):
    """What a window listed: the time of each order by its key. `reading`: how it was read."""

    rows: dict[str, int | None]
    reading: Reading

    @property
    def keys(self) -> set[str]:
        return set(self.rows)


async def read_window(
    client: TrialClient[AdapterTrial], window: Window, *, page_sizes: dict[str, PageSize] | None = None
) -> TrialWindow:
    """Read a window as a fetcher does. `page_sizes`: what it knows of the platform's lists, if not what the trial has
    seen so far."""
    rows: dict[str, int | None] = {}
    sizes = client.page_sizes if page_sizes is None else page_sizes
    reading = Reading(client.declared, window, sets_bad_aside=True, checks_window=True, page_sizes=sizes)
    while (ask := reading.next()) is not None:
        page = await client.page(ask.window, ask.page)
        if page is None:
            reading.split()
            continue
        rows |= {row.key: row.modified_ms for row in reading.feed(page)}
    return TrialWindow(rows, reading)


async def try_halves(client: TrialClient[AdapterTrial], window: Window, found: TrialWindow) -> None:
    """Ask for the window in two halves: do they list what the whole one did?"""
    bounds = client.declared.window.bounds
    middle_ms = bounds.middle_ms(window)
    if not window.start_ms < middle_ms < window.end_ms or bounds.upper == "absent":
        return
    first = await read_window(client, Window(window.start_ms, middle_ms))
    second = await read_window(client, Window(middle_ms, window.end_ms))
    both, halves = first.keys & second.keys, first.keys | second.keys
    trial = client.log
    trial.halves = TrialHalves(
        len(first.keys), len(second.keys), len(both), len(found.keys - halves), len(halves - found.keys)
    )
    if both and 2 * len(both) >= min(len(first.keys), len(second.keys)):
        trial.verdict, trial.why = "window ignored", f"both halves list the same {len(both)} orders"
        trial.hints += [ignored_hint(client)] if client.file is not None else []
    elif trial.halves.only_halves and await _lacks(client, window, halves):
        trial.verdict = "failed"
        trial.why = f"the whole window lists {len(found.keys)} orders, and its halves {len(halves)}: the list was cut"
        trial.hints.append(
            f"[pages]: the platform lists about {len(found.keys)} orders of a window at most, on all pages together, "
            'and ends as if there were no more; declare a total, or use style = "one"'
        )
    elif trial.halves.only_whole:
        trial.hints.append(
            f"[window] lower or upper: {trial.halves.only_whole} orders of the whole window are in neither half"
        )


async def _lacks(client: TrialClient[AdapterTrial], window: Window, keys: set[str]) -> bool:
    """Return whether the window still lacks orders that its halves list. They may have come in between. It is read as
    for the first time: who has seen a list of as many orders reads it in parts."""
    return bool(keys - (await read_window(client, window, page_sizes={})).keys)


async def try_bounds(client: TrialClient[AdapterTrial], window: Window, found: TrialWindow) -> None:
    """Ask for windows that begin and that end exactly at an order's time: is the order in them, as the file says?"""
    bounds = client.declared.window.bounds
    step_ms = max(bounds.step_ms, bounds.clock_ms)
    times = sorted(
        (at_ms, key)
        for key, at_ms in found.rows.items()
        if at_ms is not None and at_ms % step_ms == 0 and window.start_ms <= at_ms < window.end_ms
    )
    if not times:
        return
    trial = client.log
    at_ms, key = times[-1]
    if (
        bounds.lower == "includes"
        and at_ms + 1 < window.end_ms
        and key not in (await read_window(client, Window(at_ms, window.end_ms))).keys
    ):
        trial.hints.append(
            f'[window] lower = "excludes": asked for all from {time_text(at_ms)} on, the platform leaves out the order '
            "of exactly that time"
        )
    at_ms, key = times[0]
    if bounds.upper == "includes" and key not in (await read_window(client, Window(window.start_ms, at_ms + 1))).keys:
        trial.hints.append(
            f'[window] upper = "excludes": asked for all up to {time_text(at_ms)}, the platform leaves out the order '
            "of exactly that time"
        )


async def try_zone(client: TrialClient[AdapterTrial], window: Window, found: TrialWindow) -> None:
    """Ask for what is still to come. Orders of that are from the past, in another zone than the file says. The other
    mistake, by which all that is new is still to come, shows in nothing but the age of the newest order."""
    bounds, trial = client.declared.window.bounds, client.log
    if bounds.time.format in ("unix_s", "unix_ms") or "absent" in (bounds.lower, bounds.upper):
        return
    start_ms = client.now_ms + SOON_MS
    try:
        page = await client.page(Window(start_ms, start_ms + min(FAR_MS, client.declared.window.longest_ms)), None)
    except (TrialRefused, PlatformError):
        page = None  # many platforms refuse to be asked for it
    rows = [] if page is None or trial.verdict == "window ignored" else page.rows
    if rows and all(row.modified_ms is None or row.modified_ms > client.now_ms for row in rows):
        trial.hints.append(
            f"[window] zone: the platform lists {len(rows)} orders of a time that is still to come by the file: its "
            "wall time is that of a zone further east"
        )
    newest_ms = max((at_ms for at_ms in found.rows.values() if at_ms is not None), default=window.end_ms)
    old_ms = client.now_ms - newest_ms
    if old_ms > OLD_MS > client.now_ms - window.end_ms:
        trial.why += f". The newest order is {span_text(old_ms)} old: if there were others since, look at [window] zone"


def ignored_hint(client: TrialClient[AdapterTrial]) -> str:
    """Return that the platform ignores the window. The adapter is a file."""
    assert client.file is not None
    where = f"{sent(client.file, 'window.start')} and {sent(client.file, 'window.end')}"
    return f"{where}: the platform ignores one of them, or both"
