"""An exhaustive search through everything that can befall one small instance.

Breadth first, over the real moves of `actors.batch.rules`. A state is the record, the log of results, and where each
process stands: two splitters and two executors that may be stopped for any time and go on late, a reducer, conductors.
A step is one thing that the world can do next. A read and the compare-and-set after it are one step: refused, it
changes nothing. A process that dies is one that never goes on, so death needs no step of its own, as long as another
may begin in its place at any time.

After every step the record must be sound, the counts must be what the log says by this file's own reckoning, every end
and the first failure must be owed or told, each once, and at the end every state must have a way to an end. What a
state alone says is checked when the search first comes to it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from actors.batch.rules import moments, moves
from actors.batch.rules.moves import RoundEnded
from actors.batch.rules.record import (
    FINAL,
    TRANSITIONS,
    Instance,
    Seal,
    earlier_rounds,
    faults,
    fence_of,
    first_round,
    is_step_over,
    is_superseded,
    made_so_far,
)
from streams.backoff import Backoff
from streams.messages.batch import Counts
from tests.support.collector import no_collector

CHUNKS = 2
POLICY = Backoff(retries=1)
ENDS = ("succeeded", "failed", "again")
ODD_ENDS = ("left", "gone")
"""The item has not begun when its executor is told to stop; its chunk is not there. One of them, once in a search."""


class Result(NamedTuple):
    """What one executor wrote of one chunk, which holds one item."""

    chunk: int
    round: int
    end: str


class World(NamedTuple):
    """`splits`: fences, after how many chunks each began, and how many there are now. `hands`: chunk and round in each
    executor's hands. `reduces`: fences of reducers at work. `results`: the log, first writer wins. `retries`: how often
    was retried. `told`: passes and moments that were told and recorded as told."""

    record: Instance
    splits: tuple[tuple[int, int, int], ...] = ()
    hands: tuple[tuple[int, int], ...] = ()
    reduces: tuple[int, ...] = ()
    results: tuple[Result, ...] = ()
    retries: int = 0
    told: tuple[tuple[int, str], ...] = ()


class Rules(NamedTuple):
    """The moves that the search takes; a test puts a known-bad one in the place of one."""

    counting: Callable[..., Instance] = moves.count
    sealing: Callable[..., Instance] = moves.seal_split
    ending: Callable[..., Instance] = moves.end_running
    sweeping: Callable[[Instance, int], bool] = is_superseded
    """Which reduces' files may go."""
    is_first_writer: bool = True
    most_retries: int = 1
    most_splits: int = 2
    most_hands: int = 2
    """How many executors there are."""
    ends: tuple[str, ...] = ENDS
    odd_ends: tuple[str, ...] = ()
    staging: Callable[..., Instance] | None = None
    """How what a split has made so far is let out, if it streams. Such a split may fail, too."""
    has_alerts: bool = False
    """Whether what is owed is told at some time; it changes nothing else, and doubles the states."""


class Found(NamedTuple):
    states: int
    violations: list[str]
    stuck: int


@no_collector()
def search(rules: Rules, *, most: int = 200_000) -> Found:
    """Return what the search found in the nearest `most` states, up to the first violation."""
    first = World(Instance(instance_id="i", task="t", created_ms=0))
    seen, todo = {_key(first): first}, deque([_key(first)])
    before: dict[Key, list[Key]] = {}
    while todo and len(seen) < most:
        world = seen[here := todo.popleft()]
        for after in steps(world, rules):
            key = _key(after)
            wrong = [] if after.record is world.record else violations(world, after, rules)
            if key not in seen:
                wrong += unsound(after)
            if wrong:
                return Found(len(seen), wrong, 0)
            before.setdefault(key, []).append(here)
            if key not in seen:
                seen[key] = after
                todo.append(key)
    return Found(len(seen), [], _stuck(seen, before, todo))


Key = tuple[object, ...]


def _key(world: World) -> Key:
    # what else they say changes nothing
    named = tuple((moment.pass_no, moment.name) for moment in world.record.moments)
    return (msgspec.msgpack.encode(replace(world.record, moments=())), named, *world[1:])


def _stuck(seen: dict[Key, World], before: dict[Key, list[Key]], left: Iterable[Key]) -> int:
    """Return how many states have no way to an end, and none to what was `left` to be searched."""
    good = {key for key, world in seen.items() if world.record.state in FINAL} | {*left}
    todo = deque(good)
    while todo:
        for earlier in before.get(todo.popleft(), ()):
            if earlier not in good:
                good.add(earlier)
                todo.append(earlier)
    return len(seen) - len(good)


# ---- what can happen next


def steps(world: World, rules: Rules) -> Iterator[World]:
    record = world.record
    for moved in (
        moves.start(record, 1),
        moves.release(record, 1),
        rules.ending(record, 0.6, 1),
        moves.cancel(record, 1),
        rules.counting(record, ended(world.results), POLICY, 1, chance=0, upto_seq=len(world.results)),
    ):
        if moved is not record:
            yield world._replace(record=moved)
    if record.step_attempts < rules.most_splits:
        renewed = moves.renew_step(record, record.step_fence, 1)
        if renewed is not record:
            yield world._replace(record=renewed)
    if record.state in FINAL and world.retries < rules.most_retries:
        again = moves.retry(record)
        if again is not record:
            yield world._replace(record=again, retries=1)
    if rules.has_alerts and (owed := moments.owed(record)):
        named = [(moment.pass_no, moment.name) for moment in owed]
        yield world._replace(record=moments.mark_reported(record, owed), told=tuple(sorted((*world.told, *named))))
    yield from split_steps(world, rules)
    yield from run_steps(world, rules)
    yield from reduce_steps(world)


def split_steps(world: World, rules: Rules) -> Iterator[World]:
    record, splits = world.record, world.splits
    may_begin = record.state == "splitting" and not record.is_cancelling and len(splits) < 2
    if may_begin and record.step_fence not in [fence for fence, _, _ in splits]:
        began = record.staged[-1].chunks if record.staged else 0
        begun = moves.begin_step(record, record.step_fence, 1)
        if begun is not record:
            yield world._replace(record=begun, splits=(*splits, (record.step_fence, began, began)))
    for at, (fence, began, written) in enumerate(splits):
        left = (*splits[:at], *splits[at + 1 :])
        made = Seal(fence=fence, chunks=written, items=written, digest="d")
        if written < CHUNKS:
            yield world._replace(splits=(*splits[:at], (fence, began, written + 1), *splits[at + 1 :]))
        else:
            yield world._replace(record=rules.sealing(record, made, 1), splits=left)
        if rules.staging is not None:
            yield world._replace(record=moves.fail_step(record, fence, "no link", POLICY, 1), splits=left)
            if (staged := rules.staging(record, made)) is not record:
                yield world._replace(record=staged)


def run_steps(world: World, rules: Rules) -> Iterator[World]:
    record, hands = world.record, world.hands
    for each in record.open:
        offer = (each.chunk, each.round)
        if len(hands) < rules.most_hands and hands.count(offer) < 2:
            yield world._replace(hands=tuple(sorted((*hands, offer))))
    for at, (chunk, number) in enumerate(hands):
        left = (*hands[:at], *hands[at + 1 :])
        is_known = any((each.chunk, each.round) == (chunk, number) for each in world.results)
        if is_known and rules.is_first_writer:
            yield world._replace(hands=left)
            continue
        is_odd = any(each.end in ODD_ENDS for each in world.results)
        is_last = number % 1000 > POLICY.retries + any(each.end == "left" for each in world.results)
        ends = [end for end in rules.ends if end != "again" or not is_last]
        for end in (*ends, *(() if is_odd else rules.odd_ends)):
            yield world._replace(hands=left, results=(*world.results, Result(chunk, number, end)))


def reduce_steps(world: World) -> Iterator[World]:
    record, reduces = world.record, world.reduces
    begun = moves.begin_step(record, record.step_fence, 1)
    if record.state == "reducing" and begun is not record and len(reduces) < 2:
        yield world._replace(record=begun, reduces=(*reduces, record.step_fence))
    for at, fence in enumerate(reduces):
        left = (*reduces[:at], *reduces[at + 1 :])
        yield world._replace(record=moves.reduced(record, fence, msgspec.Raw(b"{}"), 1), reduces=left)


@cache
def ended(results: tuple[Result, ...]) -> tuple[RoundEnded, ...]:
    """Return the log as executors write it: each result says what it takes back of an earlier pass."""
    found: list[RoundEnded] = []
    for at, result in enumerate(results):
        earlier = [each for each in results[:at] if each.chunk == result.chunk and each.end in ENDS[:2]]
        is_again, is_left, is_gone = (result.end == end for end in ("again", *ODD_ENDS))
        before = _counts(earlier[-1].end) if earlier else Counts(cancelled=int(result.round > 1_000))
        redone = before if result.end in ENDS[:2] else Counts()
        known = RoundEnded(at + 1, result.chunk, result.round, _counts(result.end), int(is_again), redone)
        found.append(known._replace(left=int(is_left), is_gone=is_gone))
    return tuple(found)


def _counts(end: str) -> Counts:
    return Counts(succeeded=int(end == "succeeded"), failed=int(end == "failed"))


# ---- what must hold


def violations(before: World, after: World, rules: Rules) -> list[str]:
    """Return what is wrong with a change of the record."""
    record, wrong = after.record, list[str]()
    if record.state != before.record.state and record.state not in TRANSITIONS[before.record.state]:
        wrong.append(f"{before.record.state} became {record.state}")
    if record.seal is not None and before.record.seal is None and record.seal.fence != before.record.step_fence:
        wrong.append("sealed under an old fence")
    if any(fence_of(record, at) != fence_of(before.record, at) for at in range(before.record.released)):
        wrong.append("a chunk that was let out is another's now")
    made = made_so_far(record)
    if made is not None and made != made_so_far(before.record):
        parts = [part for part in record.staged if part.fence != made.fence]
        if (made.fence, parts[-1].chunks if parts else 0) not in [(fence, began) for fence, began, _ in before.splits]:
            wrong.append("what was made does not begin where what stood ends")
    if record.counted_seq < before.record.counted_seq:
        wrong.append("counted backwards")
    if is_step_over(before.record, record) and not record.is_cancelling:
        wrong.append("an older record tells that the one at work is over")
    return wrong + _untold(after) + swept(before.record, record, rules)


def unsound(world: World) -> list[str]:
    """Return what is wrong with a state."""
    record, wrong = world.record, faults(world.record)
    made = made_so_far(record)
    for chunk in range(made.chunks if made is not None else 0):
        if not {*earlier_rounds(record, chunk)} <= {each.round for each in world.results if each.chunk == chunk}:
            wrong.append("a pass that let a chunk out left no result of it")
    told = record.counts
    log = world.results[: record.counted_seq]
    counted = {each.chunk: "failed" for each in log if each.end == "gone"}
    counted |= {each.chunk: each.end for each in log if each.end in ENDS[:2]}
    if record.state in ("reducing", "done"):
        for end in ("succeeded", "failed"):
            if getattr(told, end) != list(counted.values()).count(end):
                wrong.append(f"{end}: {getattr(told, end)} told, {list(counted.values()).count(end)} in the log")
    of_pass = [each for each in log if each.end == "failed" and each.round >= first_round(record, each.chunk)]
    lost = sum(each.end == "gone" for each in log)
    if record.is_cancelling and record.reason.endswith("items failed") and len(of_pass) + lost < CHUNKS:
        wrong.append(f"stopped by {len(of_pass)} failures of this pass")
    if record.passes == 1 and first_round(record, 0) != 1:
        wrong.append("the first pass does not begin with round 1")
    return wrong


def swept(before: Instance, after: Instance, rules: Rules) -> list[str]:
    """Return what is wrong with the files that may go: what might have gone is no result's later."""
    fences = range(1, before.step_fence + 1)
    back = [at for at in fences if rules.sweeping(before, at) > rules.sweeping(after, at)]
    return [f"the files of fence {at} went" for at in back]


def _untold(world: World) -> list[str]:
    """Return what is wrong with what was told, or is owed."""
    record = world.record
    known = [*world.told, *((moment.pass_no, moment.name) for moment in moments.owed(record))]
    wrong = [f"{moment} told twice" for moment in known if known.count(moment) > 1]
    if record.state in FINAL and (record.passes, record.state) not in known:
        wrong.append(f"{record.state} in pass {record.passes} is not told")
    if record.counts.failed and "first_failure" not in [name for _, name in known]:
        wrong.append("the first failure is not told")
    return wrong
