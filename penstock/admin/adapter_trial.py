"""Tries an adapter file on a platform: a few requests, nothing stored, no node, no server.

It reads one window as a fetcher does, and looks at what a fetcher cannot tell a person: which name in the file does
not fit which name in the answer (platforms/diagnosis.py). Then it asks questions whose answers are known: the same
window in two halves, windows that begin and end exactly at an order's time, and the second page.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.tuning import settled_length_ms
from actors.fetch.slice_allocator import is_halved, lengths_of, with_declared
from actors.runtime.secrets import without_secrets
from actors.runtime.transport import BadUrl, PlatformDown, TooMuch, Transport
from penstock.admin.trial_client import TrialClient, TrialLog, TrialRefused, TrialTooLong
from penstock.times import span_text, time_text
from platforms.adapter import Account, Adapter, BadRow, Declaration, Page
from platforms.bounds import Window
from platforms.declared import DeclaredAdapter
from platforms.declared_file import AdapterFile
from platforms.diagnosis import (
    FieldReading,
    at,
    creation_hint,
    decoded,
    envelope_hints,
    first_fields,
    is_about_size,
    is_outside,
    leaves,
    outside_hint,
    record_hints,
    row_hints,
    sent,
    shown,
    size_hint,
    told_hints,
)
from platforms.errors import PageCut, PlatformError
from platforms.lists import lists_of
from platforms.reading import Reading
from platforms.told_limits import ToldLimit

__all__ = [
    "AdapterTrial",
    "FirstProblem",
    "TrialCost",
    "TrialHalves",
    "TrialLimit",
    "cost_of",
    "cost_text",
    "first_problem",
    "limit_text",
    "try_adapter",
]

MOST_BAD = 5
SOON_MS, OLD_MS, FAR_MS = 900_000, 3_600_000, 14 * 3_600_000
HISTORY_MS = 90 * 86_400_000

Verdict = Literal["proven", "unproven", "short", "window ignored", "failed"]
WORST_FIRST: tuple[Verdict, ...] = ("failed", "window ignored", "short", "unproven", "proven")


class TrialHalves(Struct, frozen=True):
    """The same window in two halves: how many orders each has, and how the whole differs from both together."""

    first: int
    second: int
    in_both: int
    only_whole: int
    only_halves: int


class TrialLimit(Struct, frozen=True):
    """What the first answer tells of a limit. None: it does not say."""

    left: int | None
    more_in_ms: int | None
    per_second: float | None
    at_once: int | None


class TrialCost(Struct, frozen=True):
    """What 90 days would cost, if all of it were as busy as this window."""

    slice_ms: int
    windows: int
    orders: int
    requests: int
    seconds: int
    per_second: float


class FirstProblem(NamedTuple):
    """What is wrong with a first answer. `may_pass`: a node may fare better, or has less to read."""

    text: str
    may_pass: bool


class AdapterTrial(TrialLog, kw_only=True):
    """All that a trial found. `hints`: what to change, the place in the file first. `lists`: the trial of each list, if
    there are several. `orders` are then those of all lists together."""

    adapter: str
    start: str
    end: str
    answer_names: list[str] = field(default_factory=list)
    row_names: list[str] = field(default_factory=list)
    first: dict[str, FieldReading] = field(default_factory=dict)
    listed: int = 0
    orders: int = 0
    total: int | None = None
    missing: int = 0
    bad: list[str] = field(default_factory=list)
    bad_rows: int = 0
    verdict: Verdict = "failed"
    why: str = ""
    limit: TrialLimit | None = None
    halves: TrialHalves | None = None
    cost: TrialCost | None = None
    hints: list[str] = field(default_factory=list)
    lists: dict[str, "AdapterTrial"] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.verdict in ("proven", "unproven") and not self.hints and not self.bad_rows


class _Found(NamedTuple):
    keys: set[str]
    rows: dict[str, int | None]
    listed: int
    reading: Reading


class _Tried(NamedTuple):
    """A trial of one list, the keys that it listed, and the account as it was after it."""

    trial: AdapterTrial
    keys: set[str]
    account: Account
    longest_answer_ms: int


async def try_adapter(
    adapter: Adapter,
    account: Account,
    window: Window,
    *,
    stored: Mapping[str, str],
    transport: Transport,
    now_ms: int,
    slice_ms: int = 0,
) -> AdapterTrial:
    """Try an adapter on a window, each of its lists. `stored`: the account with its references. Trouble is part of the
    result."""
    tried: dict[str, _Tried] = {}
    for name, each in lists_of(adapter).items():
        tried[name] = await _try_list(each, account, window, stored, transport, now_ms)
        account = tried[name].account
    trial = tried[""].trial if "" in tried else _together(adapter, window, tried)
    if trial.orders and isinstance(adapter, DeclaredAdapter) and not trial.lists:
        trial.hints += filter(None, [creation_hint(adapter.file)])
    if trial.orders or trial.verdict in ("proven", "unproven"):
        longest_ms = max(each.longest_answer_ms for each in tried.values())
        trial.cost = cost_of(adapter.declaration, window, trial.orders, slice_ms, longest_ms)
    return trial


def _together(adapter: Adapter, window: Window, tried: Mapping[str, _Tried]) -> AdapterTrial:
    """Return the trial of all lists: as good as the worst of them."""
    trial, trials = _trial_of(adapter, window), {name: each.trial for name, each in tried.items()}
    trial.lists = trials
    trial.sent = sum(each.sent for each in trials.values())
    trial.orders = len(set[str]().union(*(each.keys for each in tried.values())))
    trial.listed, trial.missing, trial.bad_rows = (
        sum(getattr(each, name) for each in trials.values()) for name in ("listed", "missing", "bad_rows")
    )
    trial.verdict = min((each.verdict for each in trials.values()), key=WORST_FIRST.index)
    worst = {name: each for name, each in trials.items() if each.verdict == trial.verdict}
    trial.why = "; ".join(f"list {name!r}: {each.why}" for name, each in worst.items() if each.why)
    trial.hints = [f"list {name!r}: {hint}" for name, each in trials.items() for hint in each.hints]
    return trial


async def _try_list(
    adapter: Adapter,
    account: Account,
    window: Window,
    stored: Mapping[str, str],
    transport: Transport,
    now_ms: int,
) -> _Tried:
    trial = _trial_of(adapter, window)
    client = TrialClient(adapter, account, stored, transport, trial, now_ms)
    keys: set[str] = set()
    try:
        keys = await _try(client, window)
    except TrialRefused as refused:
        trial.why = refused.reason
        trial.hints += [refused.hint] if refused.hint else []
    except TrialTooLong:
        trial.why = f"stopped after {trial.sent} requests; try a shorter window"
    except PageCut as cut:
        trial.why = cut.reason
        pages = client.declared.pages
        if pages.has_next and client.file is not None:
            told = client.file.pages.next or client.file.pages.next_header
            trial.hints.append(f"[pages] next: there are more orders, and the answer names no next page in {told!r}")
        else:
            trial.hints.append(
                f"[pages] size = {cut.rows}: the platform lists no more at once, whatever it is asked for"
            )
        if cut.is_counted and client.file is not None:
            told = client.file.pages.total or client.file.pages.total_header
            trial.hints.append(f"[pages] total: {told!r} counts the orders of one answer; leave it out")
    except PlatformError as error:
        trial.why = without_secrets(str(error))
        if "ignores the window" in trial.why and client.file is not None:
            trial.verdict = "window ignored"
            trial.hints.append(_ignored(client))
        elif "the platform counts" in trial.why and client.file is not None:
            told = client.file.pages.total or client.file.pages.total_header
            trial.hints.append(f"[pages] total: {told!r} is no count of the window's orders")
    except TooMuch as error:
        trial.why = str(error)
        trial.hints.append("largest_answer: the answer is longer; try a shorter window, or a smaller [pages] size")
    except (PlatformDown, BadUrl) as error:
        trial.why = str(error)
        trial.hints.append("base_url: no answer came from there; look at the account's base_url, and at the network")
    trial.hints = list(dict.fromkeys(trial.hints))
    return _Tried(trial, keys, client.account, client.longest_ms)


async def first_problem(
    adapter: Adapter, account: Account, window: Window, *, stored: Mapping[str, str], transport: Transport, now_ms: int
) -> FirstProblem | None:
    """Send one request for each list, and return what is wrong with the first answer that is. None: they could be
    read."""
    for name, each in lists_of(adapter).items():
        client = TrialClient(each, account, stored, transport, _trial_of(each, window), now_ms)
        problem = await _problem_of(client, window)
        if problem is not None:
            return problem._replace(text=f"list {name!r}: {problem.text}") if name else problem
        account = client.account
    return None


async def _problem_of(client: TrialClient[AdapterTrial], window: Window) -> FirstProblem | None:
    trial = client.log
    try:
        await _first_answer(client, window)
    except TrialRefused as refused:
        return FirstProblem("; look at ".join(filter(None, (refused.reason, refused.hint))), may_pass=refused.may_pass)
    except (PlatformError, PlatformDown, TooMuch, BadUrl) as error:
        return FirstProblem(without_secrets(str(error)), may_pass=True)
    if not trial.hints:
        return None
    return FirstProblem("look at " + "; and at ".join(trial.hints), may_pass=2 * trial.bad_rows <= trial.listed)


def _trial_of(adapter: Adapter, window: Window) -> AdapterTrial:
    return AdapterTrial(
        adapter=adapter.declaration.name, start=time_text(window.start_ms), end=time_text(window.end_ms)
    )


# ---- what is tried


async def _try(client: TrialClient[AdapterTrial], window: Window) -> set[str]:
    """Try one list, and return the keys that it has in the window."""
    trial = client.log
    first = await _first_answer(client, window)
    if first is not None and first.rows and all(is_about_size(hint) for hint in trial.hints):
        await _try_pages(client, _first_window(client, window), first)
    if any("ignores it" in hint and "window." in hint for hint in trial.hints):
        trial.verdict, trial.why = "window ignored", "the platform lists the same orders for any window"
        return set()
    if first is not None and first.total and not first.rows and not first.bad:
        trial.why = f"the first page is empty, and the total is {first.total}"
        return set()
    if trial.hints and first is not None and not first.rows and first.bad:
        trial.why = f"{len(first.bad)} of {len(first.bad)} rows cannot be read; the first: {first.bad[0].reason}"
        return set()
    found = await _read(client, window)
    _judge(client, window, found)
    if found.keys and trial.verdict in ("proven", "unproven", "short"):
        await _try_halves(client, window, found)
        await _try_bounds(client, window, found)
        await _try_zone(client, window, found)
    elif not found.keys:
        trial.hints.append("--from: there are no orders in this window; take a longer one to see rows")
    return found.keys


async def _first_answer(client: TrialClient[AdapterTrial], window: Window) -> Page | None:
    """Look at the first answer, and say what of it is not as declared. None: the platform finds the window too wide."""
    longest = _first_window(client, window)
    page = await client.page(longest, None)
    if page is None:
        return None
    _look(client, page)
    if client.file is not None and page.rows:
        await _try_window(client, client.file, longest, page)
    return page


def _first_window(client: TrialClient[AdapterTrial], window: Window) -> Window:
    """Return the last part of the window that one request may ask for."""
    return Window(max(window.start_ms, window.end_ms - client.declared.window.longest_ms), window.end_ms)


async def _try_window(client: TrialClient[AdapterTrial], file: AdapterFile, window: Window, page: Page) -> None:
    """If most orders are from outside of the window, ask for another one, and say what that shows."""
    bounds = client.declared.window.bounds
    if not is_outside(bounds.request(window), page):
        return
    middle_ms = (window.start_ms + window.end_ms) // 2 // bounds.step_ms * bounds.step_ms
    later = await client.page(Window(max(middle_ms, window.start_ms), window.end_ms), None)
    is_moving = later is not None and {row.key for row in later.rows} != {row.key for row in page.rows}
    client.log.hints.append(outside_hint(file, bounds.request(window), page, is_moving=is_moving))


def _ignored(client: TrialClient[AdapterTrial]) -> str:
    assert client.file is not None
    where = f"{sent(client.file, 'window.start')} and {sent(client.file, 'window.end')}"
    return f"{where}: the platform ignores one of them, or both"


def _bad_lines(bad: Sequence[BadRow]) -> list[str]:
    return [f"{each.key or '-'}: {without_secrets(each.reason)}" for each in bad[:MOST_BAD]]


def _look(client: TrialClient[AdapterTrial], page: Page) -> None:
    trial, file = client.log, client.file
    trial.bad_rows = len(page.bad)
    trial.bad = _bad_lines(page.bad)
    trial.total = page.total
    trial.listed = len(page.rows) + len(page.bad)
    if client.limit != ToldLimit():
        left, more_in_ms, per_second, at_once, _ = client.limit
        trial.limit = TrialLimit(left, more_in_ms, per_second, at_once)
    try:
        answer = decoded(client.body)
    except ValueError:
        return
    rows = at(answer, file.record.rows) if file else None
    trial.answer_names = [f"{leaf.path}: {_kind(leaf.value)}" for leaf in leaves(answer)][:30] or [_kind(answer)]
    if file is None:
        return
    if isinstance(rows, list) and rows:
        trial.row_names = [leaf.path for leaf in leaves(rows[0])][:60]
        trial.first = first_fields(file, rows[0], page.rows[0] if page.rows else None)
        if page.bad:
            trial.hints += row_hints(file, decoded(page.bad[0].body)) if _is_json(page.bad[0].body) else []
    trial.hints += record_hints(file, page.rows)
    trial.hints += envelope_hints(file, answer, page)
    trial.hints += told_hints(file, answer, client.headers)
    hint = size_hint(file, page)
    trial.hints += [hint] if hint else []


def _is_json(body: bytes) -> bool:
    try:
        decoded(body)
    except ValueError:
        return False
    return True


def _kind(value: Any) -> str:
    return shown(value) if not isinstance(value, str) else "text"


async def _try_pages(client: TrialClient[AdapterTrial], window: Window, first: Page) -> None:
    """Ask for the second page: does the platform know how it is named?"""
    file, rules = client.file, client.declared.pages
    keys = {row.key for row in first.rows}
    has_more = first.next is not None or (first.total or 0) > len(keys)
    if file is None or not has_more:
        return
    if first.next is not None and rules.style != "link":
        second = await client.page(window, first.next)
        if second is not None and second.rows and {row.key for row in second.rows} <= keys:
            where = sent(file, "page.token")
            client.log.hints.append(f"{where}: the platform returns the first page again: it does not know that name")
    if rules.numbered:
        await _try_numbers(client, file, window, first, keys)


async def _try_numbers(
    client: TrialClient[AdapterTrial], file: AdapterFile, window: Window, first: Page, keys: set[str]
) -> None:
    rules = client.declared.pages
    where = sent(file, f"page.{rules.numbered}")
    second = await client.page(window, 1 if rules.numbered == "number" else len(first.rows) + len(first.bad))
    if second is not None and second.rows and {row.key for row in second.rows} <= keys:
        client.log.hints.append(f"{where}: the platform returns the first page again: it does not know that name")
        return
    begins_at = file.pages.first if file.pages.first is not None else int(rules.numbered == "number")
    if begins_at > 0:
        try:
            before = await client.page(window, -1)
        except (TrialRefused, PlatformError):
            return
        second_keys = {row.key for row in second.rows} if second is not None else set()
        if before is not None and {row.key for row in before.rows} - keys - second_keys:
            name = where.rpartition("] ")[2]
            client.log.hints = [hint for hint in client.log.hints if not is_about_size(hint)]
            client.log.hints.append(f"[pages] first = {begins_at - 1}: there is a page before {name} = {begins_at}")


async def _read(client: TrialClient[AdapterTrial], window: Window) -> _Found:
    """Read a window as a fetcher does."""
    has_keys: dict[str, int | None] = {}
    reading = Reading(client.declared, window, sets_bad_aside=True, checks_window=True, page_sizes=client.page_sizes)
    listed = 0
    while (ask := reading.next()) is not None:
        page = await client.page(ask.window, ask.page)
        if page is None:
            reading.split()
            continue
        listed += len(page.rows) + len(page.bad)
        has_keys |= {row.key: row.modified_ms for row in reading.feed(page)}
    return _Found(set(has_keys), has_keys, listed, reading)


def _judge(client: TrialClient[AdapterTrial], window: Window, found: _Found) -> None:
    trial, result, file = client.log, found.reading.result, client.file
    trial.orders, trial.missing = result.distinct, result.missing
    trial.bad_rows = max(trial.bad_rows, len(result.bad))
    trial.bad = trial.bad or _bad_lines(result.bad)
    total = sum(part.listed for part in result.short)
    if result.missing:
        trial.verdict, trial.why = (
            "short",
            f"short by {result.missing} of {total}: the total counts more than was listed",
        )
        if file is not None:
            trial.hints.append(
                f"[pages] total: {file.pages.total or file.pages.total_header!r} counts {result.missing} more than the "
                'window lists. If it counts rows, say total_counts = "rows". If it is the same for any window, it is '
                "another total"
            )
    elif result.short:
        trial.verdict, trial.why = "short", "a list ends although the platform says that it goes on"
        trial.hints.append(
            "[pages]: declare a total, or the path of the next page, or name {page.number} in the request"
        )
    elif result.is_proven:
        trial.verdict = "proven"
        trial.why = (
            "the total is what was read" if client.declared.pages.has_total else "the list ends below a full page"
        )
        rules = client.declared.pages
        if not client.has_turned and (rules.style != "one" or rules.numbered):
            trial.why += ". No answer had a second page, so the names of pages were not tried: try a smaller size"
    else:
        trial.verdict = "unproven"
        rules = client.declared.pages
        trial.why = (
            "the counts do not add up, although no order is known to be missing"
            if rules.has_total
            else "the file declares no total, and pages without an end mark cannot prove that there were no more"
        )
        if not rules.has_total and rules.style != "one":
            trial.why += ". If a token holds a place in the list, end_is_proof = true in [pages] makes its end a mark"


def cost_of(declared: Declaration, window: Window, orders: int, slice_ms: int, longest_answer_ms: int) -> TrialCost:
    """Return what 90 days would cost with `orders` in each such window, by the engine's own lengths and its usual
    settings. `slice_ms`: the setting `slice`, 0 for `auto`."""
    settings = with_declared(FetchSettings(slice_ms=slice_ms), declared)
    lengths = lengths_of(declared, settings)
    in_all = orders * HISTORY_MS // (window.end_ms - window.start_ms)
    if lengths.is_one_walk:
        slice_ms = HISTORY_MS
    slice_ms = slice_ms or settled_length_ms(lengths, in_all, HISTORY_MS)
    windows = -(-HISTORY_MS // slice_ms)
    requests = max(windows * -(-slice_ms // lengths.longest_ms), windows * _requests_of(declared, in_all / windows))
    requests *= declared.lists
    per_second = lengths.per_s * declared.lists
    if longest_answer_ms:
        per_second = min(per_second, settings.concurrency * 1000 / longest_answer_ms)
    return TrialCost(slice_ms, windows, in_all, requests, round(requests / per_second), round(per_second, 3))


def _requests_of(declared: Declaration, orders: float) -> int:
    """Return how many requests read a window with so many orders: one where they fit a page. Where pages cannot be
    walked, a window that overflows is read again in smaller ones."""
    size = declared.pages.size
    if orders <= size:
        return 1
    return ceil(orders / size) if not is_halved(declared) else 1 + ceil(orders * 4 / (size * 3))


async def _try_halves(client: TrialClient[AdapterTrial], window: Window, found: _Found) -> None:
    step_ms = client.declared.window.bounds.step_ms
    middle_ms = (window.start_ms + window.end_ms) // 2 // step_ms * step_ms
    if not window.start_ms < middle_ms < window.end_ms or client.declared.window.bounds.upper == "absent":
        return
    first = await _read(client, Window(window.start_ms, middle_ms))
    second = await _read(client, Window(middle_ms, window.end_ms))
    both, halves = first.keys & second.keys, first.keys | second.keys
    trial = client.log
    trial.halves = TrialHalves(
        len(first.keys), len(second.keys), len(both), len(found.keys - halves), len(halves - found.keys)
    )
    if both and 2 * len(both) >= min(len(first.keys), len(second.keys)):
        trial.verdict, trial.why = "window ignored", f"both halves list the same {len(both)} orders"
        trial.hints += [_ignored(client)] if client.file is not None else []
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
    """Return whether the window still lacks orders that its halves list. They may have come in between."""
    return bool(keys - (await _read(client, window)).keys)


async def _try_bounds(client: TrialClient[AdapterTrial], window: Window, found: _Found) -> None:
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
        and key not in (await _read(client, Window(at_ms, window.end_ms))).keys
    ):
        trial.hints.append(
            f'[window] lower = "excludes": asked for all from {time_text(at_ms)} on, the platform leaves out the order '
            "of exactly that time"
        )
    at_ms, key = times[0]
    if bounds.upper == "includes" and key not in (await _read(client, Window(window.start_ms, at_ms + 1))).keys:
        trial.hints.append(
            f'[window] upper = "excludes": asked for all up to {time_text(at_ms)}, the platform leaves out the order '
            "of exactly that time"
        )


async def _try_zone(client: TrialClient[AdapterTrial], window: Window, found: _Found) -> None:
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


def cost_text(cost: TrialCost) -> str:
    """Return a cost as a sentence."""
    return (
        f"90 days as busy as this: {cost.orders:,} orders, {cost.windows:,} windows of {span_text(cost.slice_ms)}, "
        f"about {cost.requests:,} requests; {span_text(cost.seconds * 1000)} at {cost.per_second:g} a second"
    )


def limit_text(limit: TrialLimit) -> str:
    """Return what an answer tells of a limit as a sentence, in requests."""
    parts = {
        "left": "" if limit.left is None else f"{limit.left:,} left",
        "most": "" if limit.at_once is None else f"{limit.at_once:,} at once",
        "pace": "" if limit.per_second is None else f"{limit.per_second:.3g} a second",
        "more": "" if limit.more_in_ms is None else f"more in {span_text(limit.more_in_ms)}",
    }
    return f"the answer tells of a limit, in requests: {', '.join(part for part in parts.values() if part)}"
