"""Tries an adapter file on a platform: a few requests, nothing stored, no node, no server.

It reads one window as a fetcher does, and looks at what a fetcher cannot tell a person: which name in the file does
not fit which name in the answer (platforms/diagnosis.py). Then it asks for the second page, and questions whose answers
are known (trial_questions.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from actors.runtime.secrets import without_secrets
from actors.runtime.transport import BadUrl, PlatformDown, TooMuch, Transport
from penstock.admin.trial_client import Renewing, TrialClient, TrialRefused, TrialTooLong
from penstock.admin.trial_questions import TrialWindow, ignored_hint, read_window, try_bounds, try_halves, try_zone
from penstock.admin.trial_result import WORST_FIRST, AdapterTrial, TrialLimit, cost_of
from penstock.times import time_text
from platforms.adapter import Account, Adapter, BadRow, Page
from platforms.bounds import Window
from platforms.declared import DeclaredAdapter
from platforms.declared_file import AdapterFile
from platforms.diagnosis import (
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
from platforms.told_limits import ToldLimit

__all__ = ["FirstProblem", "first_problem", "try_adapter"]

MOST_BAD = 5


class FirstProblem(NamedTuple):
    """What is wrong with a first answer. `may_pass`: a node may fare better, or has less to read."""

    text: str
    may_pass: bool


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
    slice_ms: int,
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
        trial.hints += _cut_hints(cut, client)
    except PlatformError as error:
        trial.why = without_secrets(str(error))
        if "ignores the window" in trial.why and client.file is not None:
            trial.verdict = "window ignored"
            trial.hints.append(ignored_hint(client))
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


def _cut_hints(cut: PageCut, client: TrialClient[AdapterTrial]) -> Iterator[str]:
    if client.declared.pages.has_next and client.file is not None:
        told = client.file.pages.next or client.file.pages.next_header
        yield f"[pages] next: there are more orders, and the answer names no next page in {told!r}"
    else:
        yield f"[pages] size = {cut.rows}: the platform lists no more at once, whatever it is asked for"
    if cut.is_counted and client.file is not None:
        told = client.file.pages.total or client.file.pages.total_header
        yield f"[pages] total: {told!r} counts the orders of one answer; leave it out"


async def first_problem(
    adapter: Adapter,
    account: Account,
    window: Window,
    *,
    stored: Mapping[str, str],
    transport: Transport,
    now_ms: int,
    renewing: Renewing | None = None,
) -> FirstProblem | None:
    """Send one request for each list, and return what is wrong with the first answer that is. None: they could be
    read. `renewing`: see TrialClient."""
    for name, each in lists_of(adapter).items():
        client = TrialClient(each, account, stored, transport, _trial_of(each, window), now_ms, renewing)
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
    found = await read_window(client, window)
    _judge(client, found)
    if found.keys and trial.verdict in ("proven", "unproven", "short"):
        await try_halves(client, window, found)
        await try_bounds(client, window, found)
        await try_zone(client, window, found)
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
    later = await client.page(Window(max(bounds.middle_ms(window), window.start_ms), window.end_ms), None)
    is_moving = later is not None and {row.key for row in later.rows} != {row.key for row in page.rows}
    client.log.hints.append(outside_hint(file, bounds.request(window), page, is_moving=is_moving))


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


def _judge(client: TrialClient[AdapterTrial], found: TrialWindow) -> None:
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
