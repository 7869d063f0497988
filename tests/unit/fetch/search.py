"""An exhaustive search through everything that two allocators and two fetchers can do to three slices.

Breadth first, over the real moves of `actors.fetch.rules`. A state is the ledger, the queue, where each process stands,
and what was committed so far. A step is one thing that the world can do next: a process writes the ledger by
compare-and-set, offers, pulls, stores orders, acknowledges; a message comes again while its holder lives; the monitor
takes a slice away; the slice length changes; a process dies between any two of its steps, any number of times. Time is
left out: every wait may be over, and every threshold be passed, whenever it suits the worst case.

After every write the rules of docs/guarantees.md are checked (I1-I6, I14), by this file's own reckoning. At the end
every state that was reached has to have a way, without any further death, to "everything complete": a state without
one holds a gap for good.

The states are kept few without leaving any behaviour out:

- A read and the compare-and-set after it are one step. The set succeeds only if nobody wrote in between, so the read
  could as well have come right before it; refused, it changes nothing, and the process reads again. What a process
  concludes from a read *without* writing (what to offer, that a slice is over) it keeps, however old it gets.
- A message may be handed out again at any time, so it does not matter whether it is handed out now.
- Of fences and message numbers it matters only whether they are still the ones in force.
- The two processes of a kind are interchangeable, and a process that can do nothing but settle stands at `ack`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from actors.fetch.rules.cutting import cut, offers_due
from actors.fetch.rules.holding import Completed, StaleFence, Taken, complete, expire, fail, miss, take
from actors.fetch.rules.ledger import Ledger, OpenSlice, Outage, first_ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.slices import parse_slice_id
from actors.fetch.rules.steering import accept_hole, redrive_hole
from tests.support.collector import no_collector

LATE = 10**12
"""A moment at which every wait is over."""

VOID = -1
"""A fence that no open slice bears any more."""

T = TypeVar("T")


class Allocator(NamedTuple):
    """What it has read and will publish, one after the other; nothing: it will look at the ledger next."""

    offers: tuple[str, ...] = ()


class Fetcher(NamedTuple):
    """idle; got: has a message; works: has taken the slice; stored: its orders are safe; ack: will settle."""

    at: str = "idle"
    slice_id: str = ""
    message: int = 0
    fence: int = 0


class Message(NamedTuple):
    """One subject of the queue. `number` tells this message from an earlier one on the same subject."""

    slice_id: str
    number: int


class State(NamedTuple):
    ledger: Ledger
    queue: tuple[Message, ...]
    allocators: tuple[Allocator, ...]
    fetchers: tuple[Fetcher, ...]
    committed: frozenset[str] = frozenset()
    is_changed: bool = False


class Step(NamedTuple):
    label: str
    state: State
    is_fault: bool = False
    broken: str = ""


class Rules(NamedTuple):
    """The moves under test; a known-bad variant has one of them wrong."""

    cut: Callable[[Ledger, FetchSettings, int], Ledger] = cut
    to_offer: Callable[[Ledger, Ledger], list[OpenSlice]] = lambda before, after: offers_due(after, LATE)
    complete: Callable[[Ledger, str, int, int], tuple[Ledger, Completed | StaleFence]] = complete


class World(NamedTuple):
    """What is searched: how far time goes, the settings (and the other ones they may change to), what may happen.

    With `retries=0` every failure and every expiry makes a hole, which somebody redrives."""

    rules: Rules = Rules()
    until_ms: int = 30
    settings: FetchSettings = FetchSettings(slice_ms=10, settle_ms=0, max_open=2, again_ms=(), retries=10**6)
    other: FetchSettings | None = None
    may_fail: bool = False
    may_miss: bool = False
    may_accept: bool = False
    of_each: int = 2  # allocators, and fetchers

    def first(self) -> State:
        return canonical(self, State(first_ledger(0), (), (Allocator(),) * self.of_each, (Fetcher(),) * self.of_each))

    def settings_in(self, state: State) -> FetchSettings:
        return self.other if self.other is not None and state.is_changed else self.settings


class Finding(NamedTuple):
    """`broken` is empty if every rule held everywhere; else `trace` is the shortest way to a breach."""

    states: int
    steps: int
    broken: str = ""
    trace: tuple[str, ...] = ()


@no_collector()
def search(world: World) -> Finding:
    """Visit every state that can be reached; stop at the first breach of a rule, by fewest steps."""
    first = world.first()
    number = {first: 0}
    came: list[tuple[int, str]] = [(-1, "start")]
    healing: list[list[int]] = [[]]  # for each state, those from which it is reached without a fault
    steps = 0
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        here = number[state]
        for step in steps_from(world, state):
            steps += 1
            if step.broken:
                return Finding(len(number), steps, step.broken, (*_trace(came, here), step.label))
            there = number.setdefault(step.state, len(number))
            if there == len(came):
                came.append((here, step.label))
                healing.append([])
                waiting.append(step.state)
            if not step.is_fault:
                healing[there].append(here)
    lost = _first_without_way(healing, [is_complete(world, state) for state in number])
    if lost is None:
        return Finding(len(number), steps)
    return Finding(len(number), steps, "a slice is left undone for good", _trace(came, lost))


def _trace(came: list[tuple[int, str]], here: int) -> tuple[str, ...]:
    labels: list[str] = []
    while here > 0:
        here, label = came[here]
        labels.append(label)
    return tuple(reversed(labels))


def _first_without_way(healing: list[list[int]], is_done: list[bool]) -> int | None:
    """The first state, by steps from the start, from which nothing leads to a done one."""
    reaches = list(is_done)
    waiting = [i for i, done in enumerate(is_done) if done]
    while waiting:
        for before in healing[waiting.pop()]:
            if not reaches[before]:
                reaches[before] = True
                waiting.append(before)
    return reaches.index(False) if False in reaches else None


def is_complete(world: World, state: State) -> bool:
    ledger = state.ledger
    is_empty = not ledger.open and not ledger.holes and not state.queue
    return is_empty and ledger.frontier_ms == ledger.watermark_ms == world.until_ms


def steps_from(world: World, state: State) -> Iterator[Step]:
    """Everything that can happen next."""
    for i in _different(state.allocators):
        yield from _allocator_steps(world, state, i)
    for i in _different(state.fetchers):
        yield from _fetcher_steps(world, state, i)
    yield from _monitor_steps(world, state)
    yield from _hole_steps(world, state)
    if world.other is not None and not state.is_changed:
        changed = state._replace(is_changed=True)
        yield Step("the slice length is changed", canonical(world, changed), is_fault=True)


def _different(processes: tuple[T, ...]) -> range:
    """The processes to look at: one, if two stand at the same. (They are sorted.)"""
    return range(len(set(processes)))


def _allocator_steps(world: World, state: State, i: int) -> Iterator[Step]:
    rules, offers = world.rules, state.allocators[i].offers
    if offers:
        offered = state._replace(queue=_offered(state, offers[0]))
        yield _allocated(world, f"an allocator offers {offers[0]}", offered, i, offers[1:])
        dead = _allocated(world, f"an allocator dies before it offers {offers[0]}", state, i, ())
        yield dead._replace(is_fault=True)
        return
    after = rules.cut(state.ledger, world.settings_in(state), world.until_ms)
    found = tuple(each.slice_id for each in rules.to_offer(state.ledger, after))
    if after is not state.ledger:
        now = state._replace(allocators=_put(state.allocators, i, Allocator(found)))
        yield _write(world, "an allocator cuts", now, after)
    elif found:
        yield _allocated(world, f"an allocator reads, will offer {', '.join(found)}", state, i, found)


def _fetcher_steps(world: World, state: State, i: int) -> Iterator[Step]:
    fetcher = state.fetchers[i]
    slice_id, message = fetcher.slice_id, fetcher.message
    match fetcher.at:
        case "idle":
            for ready in state.queue:
                mine = Fetcher("got", ready.slice_id, ready.number)
                yield _fetched(world, f"a fetcher is handed {ready.slice_id}", state, i, mine)
        case "got":
            yield _take(world, state, i)
        case "works":
            stored = fetcher._replace(at="stored")
            yield _fetched(world, f"a fetcher stores the orders of {slice_id}", state, i, stored)
            if world.may_fail:
                yield _fail(world, state, i)
            if world.may_miss:
                yield _miss(world, state, i)
        case "stored":
            yield _complete(world, state, i)
        case "ack":
            queue = tuple(each for each in state.queue if each != (slice_id, message))
            yield _fetched(world, f"a fetcher acknowledges {slice_id}", state._replace(queue=queue), i, Fetcher())
    if fetcher.at != "idle":
        label = f"a fetcher dies at '{fetcher.at}' with {slice_id}"
        yield _fetched(world, label, state, i, Fetcher())._replace(is_fault=True)


def _take(world: World, state: State, i: int) -> Step:
    fetcher = state.fetchers[i]
    after, result = take(state.ledger, fetcher.slice_id, "", LATE, most_losses=10**6)
    if not isinstance(result, Taken):
        settles = fetcher._replace(at="ack")
        return _fetched(world, f"a fetcher reads that {fetcher.slice_id} is over", state, i, settles)
    fence = result.slice.fence
    mine = _put(state.fetchers, i, fetcher._replace(at="works", fence=fence))
    step = _write(world, f"a fetcher takes {fetcher.slice_id}", state._replace(fetchers=mine), after)
    is_new = state.ledger.fence < fence == after.fence
    return step if is_new else step._replace(broken="I6: a fence is given twice")


def _fail(world: World, state: State, i: int) -> Step:
    fetcher = state.fetchers[i]
    policy = world.settings.retry_policy
    after, _ = fail(state.ledger, fetcher.slice_id, fetcher.fence, "", policy, LATE, chance=0)
    now = state._replace(fetchers=_put(state.fetchers, i, fetcher._replace(at="ack", fence=0)))
    return _write(world, f"a fetcher fails at {fetcher.slice_id}", now, after)


def _miss(world: World, state: State, i: int) -> Step:
    fetcher = state.fetchers[i]
    policy = world.settings.retry_policy
    after, _ = miss(state.ledger, fetcher.slice_id, fetcher.fence, "", policy, 0, chance=0)
    now = state._replace(fetchers=_put(state.fetchers, i, fetcher._replace(at="ack", fence=0)))
    return _write(world, f"the platform gives a fetcher no answer for {fetcher.slice_id}", now, after)


def _complete(world: World, state: State, i: int) -> Step:
    fetcher = state.fetchers[i]
    slice_id = fetcher.slice_id
    after, result = world.rules.complete(state.ledger, slice_id, fetcher.fence, LATE)
    settles = state._replace(fetchers=_put(state.fetchers, i, fetcher._replace(at="ack", fence=0)))
    if isinstance(result, StaleFence):
        return _write(world, f"a fetcher is refused as stale for {slice_id}", settles, after)
    now = settles._replace(committed=state.committed | {slice_id})
    step = _write(world, f"a fetcher completes {slice_id}", now, after)
    if {each.slice_id: each.fence for each in state.ledger.open}.get(slice_id) != fetcher.fence:
        return step._replace(broken=f"I4: {slice_id} is completed by one who does not hold it")
    if slice_id in state.committed:
        return step._replace(broken=f"I5: {slice_id} is completed twice")
    return step


def _monitor_steps(world: World, state: State) -> Iterator[Step]:
    for held in state.ledger.open:
        if held.is_taken:
            # Only this one has been held for too long: the others were taken just now.
            only = tuple(each if each is held else replace(each, taken_ms=LATE) for each in state.ledger.open)
            after, _ = expire(replace(state.ledger, open=only), world.settings, LATE, chance=0)
            yield _write(world, f"the monitor takes {held.slice_id} away", state, after)


def _hole_steps(world: World, state: State) -> Iterator[Step]:
    for hole in state.ledger.holes:
        after, _ = redrive_hole(state.ledger, hole.slice_id, LATE)
        yield _write(world, f"somebody redrives {hole.slice_id}", state, after)
        if world.may_accept and not hole.accepted_by:
            after, _ = accept_hole(state.ledger, hole.slice_id, "somebody")
            yield _write(world, f"somebody accepts {hole.slice_id}", state, after)


def _allocated(world: World, label: str, state: State, i: int, offers: tuple[str, ...]) -> Step:
    allocators = _put(state.allocators, i, Allocator(offers))
    return Step(label, canonical(world, state._replace(allocators=allocators)))


def _fetched(world: World, label: str, state: State, i: int, fetcher: Fetcher) -> Step:
    return Step(label, canonical(world, state._replace(fetchers=_put(state.fetchers, i, fetcher))))


def _write(world: World, label: str, state: State, after: Ledger) -> Step:
    broken = breach(state.ledger, after, state.committed)
    return Step(label, canonical(world, state._replace(ledger=after)), broken=broken)


def breach(before: Ledger, after: Ledger, committed: frozenset[str]) -> str:
    """Return which rule the ledger breaks, or nothing. By lists of windows, not by the ledger's own helpers."""
    listed = [(each.start_ms, each.end_ms) for each in (*after.open, *after.holes)]
    complete_ones = {(each.start_ms, each.end_ms) for each in map(parse_slice_id, committed)}
    kept = {(each.start_ms, each.end_ms) for each in (*before.open, *before.holes)}
    awaited = [each.start_ms for each in after.open if each.kind == "t"]
    awaited += [each.start_ms for each in after.holes if each.kind == "t" and not each.accepted_by]
    if len(set(listed)) < len(listed) or complete_ones & set(listed):
        return "I2: a slice is two of open, hole and complete"
    if kept - set(listed) - complete_ones:
        return "I14: an open slice lost its window"
    at_ms = 0
    for start_ms, end_ms in sorted([*listed, *complete_ones]):
        if start_ms != at_ms:
            return f"I1: {'a gap' if start_ms > at_ms else 'an overlap'} at {at_ms}"
        at_ms = end_ms
    if at_ms != after.frontier_ms:
        return f"I1: the slices end at {at_ms}, the frontier is at {after.frontier_ms}"
    if after.watermark_ms < before.watermark_ms:
        return f"I3: the watermark goes back from {before.watermark_ms} to {after.watermark_ms}"
    if after.watermark_ms > min(awaited, default=after.frontier_ms):
        return f"I3: the watermark {after.watermark_ms} has passed a slice that is not complete"
    return ""


def _offered(state: State, slice_id: str) -> tuple[Message, ...]:
    """The queue after an offer, which is refused while the subject holds a message, handed out or not."""
    if any(each.slice_id == slice_id for each in state.queue):
        return state.queue
    return tuple(sorted((*state.queue, Message(slice_id, 2))))  # canonical ones bear 0 and 1


def _put(processes: tuple[T, ...], i: int, one: T) -> tuple[T, ...]:
    return (*processes[:i], one, *processes[i + 1 :])


def canonical(world: World, state: State) -> State:
    """The one state that stands for all that differ only in times, in the numbers of fences and messages, and in which
    of two like processes is which."""
    rank = {fence: i + 1 for i, fence in enumerate(each.fence for each in state.ledger.open if each.fence)}
    fetchers = tuple(sorted(_canonical_fetcher(world, state, each, rank) for each in state.fetchers))
    queue = tuple(each._replace(number=1) for each in state.queue)
    ledger = _timeless(state.ledger, rank)
    return state._replace(ledger=ledger, queue=queue, allocators=tuple(sorted(state.allocators)), fetchers=fetchers)


def _timeless(ledger: Ledger, rank: dict[int, int]) -> Ledger:
    """The ledger without times and attempts, its fences renamed. One number above those in use stands for all that were
    given before and are void; a take that gives it, or one in use, is a breach."""
    order = sorted({0, *(each.misses for each in ledger.open)})
    held = tuple(
        OpenSlice(
            each.kind,
            each.epoch,
            each.start_ms,
            each.end_ms,
            fence=rank.get(each.fence, 0),
            misses=order.index(each.misses),
            others_read=each.others_read,
        )
        for each in ledger.open
    )
    holes = sorted((replace(each, since_ms=0, reason="") for each in ledger.holes), key=lambda hole: hole.slice_id)
    outage = ledger.outage
    if outage is not None:  # what was taken since it began is a probe
        outage = Outage(0, fence=sum(fence <= outage.fence for fence in rank))
    return replace(ledger, fence=len(rank) + 1, open=held, holes=tuple(holes), outage=outage, hold_until_ms=0)


def _canonical_fetcher(world: World, state: State, fetcher: Fetcher, rank: dict[int, int]) -> Fetcher:
    """The fetcher with its fence renamed, and its message 1 if that one is still in the queue, else 0."""
    if fetcher.at == "idle":
        return fetcher
    at, slice_id = fetcher.at, fetcher.slice_id
    message = int((slice_id, fetcher.message) in state.queue)
    fence = rank.get(fetcher.fence, VOID) if fetcher.fence else 0
    is_refused = fence == VOID and isinstance(world.rules.complete(state.ledger, slice_id, VOID, LATE)[1], StaleFence)
    if is_refused or (at == "got" and slice_id in state.committed):
        at, fence = "ack", 0
    return Fetcher() if at == "ack" and not message else Fetcher(at, slice_id, message, fence)
