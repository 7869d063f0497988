"""The record of one run of a task: what was asked, how far it is, what became of its items.

One record an instance, changed only by compare-and-set, by the moves of `batch_moves`. A chunk of items is not released
yet (its number is `released` or more), open, or over: so the record stays small, whatever the number of items. Counts
and the place in the log up to which they were counted change together, so each result counts once.
"""

from itertools import pairwise
from typing import Literal

import msgspec

from streams.batch_messages import Counts

State = Literal["pending", "splitting", "running", "reducing", "done", "failed", "cancelled"]

TRANSITIONS: dict[State, frozenset[State]] = {
    "pending": frozenset({"splitting", "cancelled", "failed"}),
    "splitting": frozenset({"running", "cancelled", "failed"}),
    "running": frozenset({"reducing", "cancelled", "failed"}),
    "reducing": frozenset({"done", "cancelled", "failed"}),
    "done": frozenset({"running"}),
    "failed": frozenset({"running", "pending"}),
    "cancelled": frozenset({"running", "pending"}),
}
"""Done, failed and cancelled go on only when somebody asks for a retry. Paused is no state: it is a flag beside one."""
FINAL: frozenset[State] = frozenset({"done", "failed", "cancelled"})

BEAT_TTL_S = 10
"""A split or a reduce whose executor says nothing for so long is offered to another."""

FILES_OF = "result-"
"""Stands before the fence in the names of files that reduces wrote."""

ROUNDS = 1_000
"""Rounds of one pass, at most: round 2 of pass 3 is number 2002, which no earlier pass's results can bear."""


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a split, or how far a streaming one has come: which chunks count (those of `fence`), how many there
    are, with how many items, and a digest over all of these in order. `version`: of the code that made the items."""

    fence: int
    chunks: int
    items: int
    digest: str
    version: str = ""


class Past(msgspec.Struct, frozen=True, array_like=True):
    """How far an earlier pass came: it let out the chunks below `released`, each of which has results of it. Those from
    `first_new` on were in no pass before."""

    released: int
    first_new: int | None = None


class OpenChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chunk that was released and is not over: the round that is asked for, and from when on."""

    chunk: int
    round: int
    not_before_ms: int = 0


MomentName = Literal["first_failure", "done", "failed", "cancelled"]


class Moment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that those outside are told of (model/batch_moments.py), and how far that is. `items`: how many there
    are, None before that is known. `tries`: of the callback; `info`: why the last one failed."""

    name: MomentName
    pass_no: int
    at_ms: int
    counts: Counts
    items: int | None = None
    reason: str = ""
    state: Literal["owed", "waiting", "taken", "given_up"] = "owed"
    tries: int = 0
    info: str = ""


class Instance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run. `input` is the user's own JSON; `step_fence` names the split or reduce that may end it now."""

    instance_id: str
    task: str
    created_ms: int
    input: msgspec.Raw = msgspec.Raw(b"null")
    tenant: str = ""
    priority: int = 0
    weight: int = 1
    state: State = "pending"
    is_paused: bool = False
    is_cancelling: bool = False
    started_ms: int = 0
    ended_ms: int = 0
    step_fence: int = 0
    begun_fence: int = 0
    """The last fence under which a step was begun: under each it is begun once."""
    step_attempts: int = 0
    """How often the step at work was begun; `step_failures`: how often of these it said itself why it failed."""
    step_failures: int = 0
    step_since_ms: int = 0
    seal: Seal | None = None
    staged: tuple[Seal, ...] = ()
    """What of a streaming split stands and may run before the seal: how far each fence came that got any further."""
    released: int = 0
    open: tuple[OpenChunk, ...] = ()
    passes: int = 1
    redo: tuple[int, ...] = ()
    """Items that the present pass runs again; none: all that failed or were cancelled."""
    first_new: int | None = None
    """After a split that failed and is begun again: the chunks from this one on were in no pass before."""
    past: tuple[Past, ...] = ()
    """The passes before this one, as far as they are known."""
    counted_seq: int = 0
    counts: Counts = Counts()
    gone: int = 0
    """Chunks that were found gone: what has no end when all others are over has failed with them."""
    failed_now: int = 0
    """Items that failed in the present pass, as far as it is counted."""
    reasons: tuple[str, ...] = ()
    """Why the first few items failed."""
    reason: str = ""
    """Why the instance failed."""
    result: msgspec.Raw = msgspec.Raw(b"null")
    """What reduce returned: the user's own JSON, with the names of files."""
    result_fence: int = 0
    """Under which fence that was: the files of each reduce lie apart, so that none takes another's place."""
    callback: str = ""
    """The URL that is told of moments; empty: nobody is called."""
    moments: tuple[Moment, ...] = ()


def shown_state(instance: Instance) -> str:
    """Return the state as people are told it."""
    if instance.state in FINAL:
        return instance.state
    if instance.is_cancelling:
        return "cancelling"
    return "paused" if instance.is_paused else instance.state


def is_over(latest: Instance | None, own: Instance) -> bool:
    """Whether the pass in which `own` was read is cancelled or over. `latest` may be older than `own`, and is believed
    only in what no later record takes back: within a pass a cancel stays."""
    return (
        latest is not None
        and latest.created_ms == own.created_ms
        and (latest.passes, latest.is_cancelling) > (own.passes, False)
    )


def is_step_over(latest: Instance | None, own: Instance) -> bool:
    """Whether the split or the reduce that `own` is at counts no more; `latest` may be older, as for `is_over`."""
    is_newer = latest is not None and latest.created_ms == own.created_ms and latest.step_fence > own.step_fence
    return is_newer or is_over(latest, own)


def beat_key(instance: Instance) -> str:
    """Return under which key of BEATS the step at work beats."""
    return f"{instance.instance_id}.{instance.step_fence}"


def files_at(instance_id: str, fence: int) -> str:
    """Return what stands before the names of the files that a reduce stores."""
    return f"{instance_id}/{FILES_OF}{fence}/" if fence else f"{instance_id}/"


def is_superseded(instance: Instance, fence: int) -> bool:
    """Whether a reduce of this fence has not made the result that stands, and never will. What is, stays so."""
    may_end = instance.state == "reducing" and fence == instance.step_fence
    return fence <= instance.step_fence and fence != instance.result_fence and not may_end


def made_so_far(instance: Instance) -> Seal | None:
    """Return what items there are for certain: all, or those of a streaming split until now; None before there are."""
    return instance.seal or (instance.staged[-1] if instance.staged else None)


def known_items(instance: Instance) -> int | None:
    """Return how many items the instance has; None before that is known."""
    made = made_so_far(instance) if instance.state in FINAL else instance.seal
    return None if made is None else made.items


def fence_of(instance: Instance, chunk: int) -> int:
    """Return the fence under which a chunk that was released stands."""
    made = (*instance.staged, *((instance.seal,) if instance.seal is not None else ()))
    return next((each.fence for each in made if chunk < each.chunks), instance.step_fence)


def first_round(instance: Instance, chunk: int) -> int:
    """Return the number of the first round of a chunk in the present pass."""
    return _first_round(instance.passes, instance.first_new, chunk)


def earlier_rounds(instance: Instance, chunk: int) -> list[int]:
    """Return the first rounds of a chunk in earlier passes: each of them has a result."""
    passes = enumerate(instance.past, instance.passes - len(instance.past))
    return [_first_round(number, past.first_new, chunk) for number, past in passes if chunk < past.released]


def _first_round(number: int, first_new: int | None, chunk: int) -> int:
    return 1 if first_new is not None and chunk >= first_new else (number - 1) * ROUNDS + 1


def round_of_pass(number: int) -> int:
    """Return which try within its pass a round is, from 1."""
    return (number - 1) % ROUNDS + 1


def faults(instance: Instance) -> list[str]:
    """Return which rules the record breaks; none, if it is sound."""
    made, ended, found = made_so_far(instance), instance.counts.ended, list[str]()
    if instance.seal is None and instance.state in ("running", "reducing", "done"):
        found.append(f"{instance.state} without a seal")
    if made is None and instance.released:
        found.append(f"{instance.released} chunks released, and none is there")
    if made is not None and ended > made.items:
        found.append(f"{ended} items ended, of {made.items}")
    if made is not None and instance.released > made.chunks:
        found.append(f"{instance.released} chunks released, of {made.chunks}")
    if made is not None and instance.state in ("reducing", *FINAL) and ended != made.items:
        found.append(f"{instance.state} with {ended} items ended, of {made.items}")
    if any(before.chunks >= after.chunks for before, after in pairwise(instance.staged)):
        found.append("staged chunks went back")
    if min(msgspec.structs.astuple(instance.counts)) < 0:
        found.append(f"counted below zero: {instance.counts}")
    if len({each.chunk for each in instance.open}) != len(instance.open):
        found.append("a chunk is open twice")
    if any(each.chunk >= instance.released for each in instance.open):
        found.append("a chunk is open that was not released")
    if instance.open and instance.state not in ("splitting", "running"):
        found.append(f"{instance.state} with open chunks")
    return found
