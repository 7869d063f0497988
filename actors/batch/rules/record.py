"""The record of one run of a task: its input, its progress, the outcomes of its items.

There is one record an instance, changed only by compare-and-set, by the moves of `moves.py`. A chunk of items is not
released yet (its number is `released` or more), open, or over. So the record stays small, whatever the number of items.
The counts and the place in the log up to which they were counted change together, so each result counts once.
"""

from itertools import pairwise
from typing import Literal, get_args

import msgspec

from streams.messages.batch import AfterState, Counts

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
"""Done, failed and cancelled instances go on only after a retry. Paused is no state: it is a flag beside one."""
FINAL: frozenset[State] = frozenset({"done", "failed", "cancelled"})

HELD_LOOK_MS = 30_000
"""How soon instances that wait for others are looked at without any other cause."""
BEAT_TTL_S = 10
"""If the executor of a split or a reduce is silent for so many seconds, the step is offered to another."""

FILES_OF = "result-"
"""Stands before the fence in the names of files that reduces wrote."""

ROUNDS = 1_000
"""The limit of rounds in one pass. Round 2 of pass 3 is number 2002, which no result of an earlier pass can have."""


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a split, or the progress of a streaming one: which chunks count (those of `fence`), how many there
    are, with how many items, and a digest over all of these in order. `version`: of the code that made the items."""

    fence: int
    chunks: int
    items: int
    digest: str
    version: str = ""


class Past(msgspec.Struct, frozen=True, array_like=True):
    """The progress of an earlier pass: it released the chunks below `released`, each of which has results of it. Chunks
    from `first_new` on were in no pass before."""

    released: int
    first_new: int | None = None


class OpenChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chunk that was released and is not over: the round to run, and the earliest time for it."""

    chunk: int
    round: int
    not_before_ms: int = 0


MomentName = Literal["first_failure", "done", "failed", "cancelled"]


class Moment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event to report to the outside (actors/batch/rules/moments.py), and the state of that report. `items`: how
    many there are. `None`: not known yet. `tries`: of the callback. `info`: why the last one failed."""

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
    """One run. `input` is the user's own JSON. `step_fence` names the split or reduce that may end it now."""

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
    """The last fence under which a step was begun. Under each fence it is begun once."""
    step_attempts: int = 0
    """How often the current step was begun. `step_failures`: how many of these runs reported their own failure."""
    step_failures: int = 0
    step_since_ms: int = 0
    step_not_before_ms: int = 0
    """When a step that failed is offered again."""
    seal: Seal | None = None
    staged: tuple[Seal, ...] = ()
    """The chunks of a streaming split that stand and may run before the seal: the progress of each fence that made
    any."""
    released: int = 0
    open: tuple[OpenChunk, ...] = ()
    passes: int = 1
    redo: tuple[int, ...] = ()
    """Items that the present pass runs again. Empty: all that failed or were cancelled."""
    first_new: int | None = None
    """After a split that failed and is begun again: the chunks from this one on were in no pass before."""
    past: tuple[Past, ...] = ()
    """The passes before this one, as far as they are known."""
    counted_seq: int = 0
    counts: Counts = Counts()
    gone: int = 0
    """How many chunks are missing. Items without an end, when all others are over, have failed with them."""
    failed_now: int = 0
    """Items that failed in the present pass, as far as it is counted."""
    reasons: tuple[str, ...] = ()
    """Why the first few items failed."""
    reason: str = ""
    """Why the instance failed."""
    result: msgspec.Raw = msgspec.Raw(b"null")
    """What reduce returned: the user's own JSON, with the names of files."""
    result_fence: int = 0
    """The fence of that reduce. The files of each reduce have their own place, so that none overwrites another's."""
    callback: str = ""
    """The URL to which moments are reported. Empty: no callback."""
    moments: tuple[Moment, ...] = ()
    traceparent: str = ""
    """The span that submitted it. Empty: nobody traced that."""
    due_ms: int = 0
    """It begins then at the earliest."""
    after: str = ""
    """The instance after whose end it begins. `after_created_ms`: of that one, since a later one of its id is another.
    `after_state`: how it has to end. `freed_ms`: when it was seen to have ended so."""
    after_created_ms: int = 0
    after_state: AfterState = "done"
    freed_ms: int = 0
    deleted_ms: int = 0
    """When it was marked for removal. 0: it stays. Nothing changes a marked one."""
    nonce: str = ""
    """Of the call that made it. `calls`: of the latest calls that changed it, or asked for what it was already."""
    calls: tuple[str, ...] = ()


SHOWN_STATES = (*get_args(State), "paused", "cancelling")


def shown_state(instance: Instance) -> str:
    """Return the state as people see it."""
    if instance.state in FINAL:
        return instance.state
    if instance.is_cancelling:
        return "cancelling"
    return "paused" if instance.is_paused else instance.state


def is_at_work(instance: Instance) -> bool:
    """Return whether pointers at its work may wait: it has begun, and has not ended."""
    return instance.state != "pending" and instance.state not in FINAL


def is_held(instance: Instance) -> bool:
    """Return whether an instance waits for the end of another one."""
    return instance.state == "pending" and bool(instance.after) and not instance.freed_ms


def may_begin(instance: Instance, now_ms: int) -> bool:
    """Return whether the time of an instance has come, and it waits for no other."""
    return instance.due_ms <= now_ms and not is_held(instance)


def tries_at_ms(instance: Instance, now_ms: int) -> list[int]:
    """Return the moments to come at which a step or a chunk of an instance runs again."""
    moments = (instance.step_not_before_ms, *(each.not_before_ms for each in instance.open))
    return [moment for moment in moments if moment > now_ms]


def is_over(latest: Instance | None, own: Instance) -> bool:
    """Return whether the pass in which `own` was read is cancelled or over. `latest` may be older than `own`, so only
    what no later record reverts counts: within a pass a cancel stays, and a later instance of the id was made after
    `own` was deleted."""
    order = (own.created_ms, own.passes, False)
    return latest is not None and (latest.created_ms, latest.passes, latest.is_cancelling) > order


def is_step_over(latest: Instance | None, own: Instance) -> bool:
    """Return whether the current split or reduce of `own` counts no more. `latest` may be older, as for `is_over`."""
    is_newer = latest is not None and latest.created_ms == own.created_ms and latest.step_fence > own.step_fence
    return is_newer or is_over(latest, own)


def beat_key(instance: Instance) -> str:
    """Return the key of BEATS for the heartbeat of the current step."""
    return f"{instance.instance_id}.{instance.step_fence}"


def files_at(instance_id: str, fence: int) -> str:
    """Return the prefix of the files that a reduce stores."""
    return f"{instance_id}/{FILES_OF}{fence}/" if fence else f"{instance_id}/"


def is_superseded(instance: Instance, fence: int) -> bool:
    """Return whether a reduce of this fence has not made the standing result, and never will. That is final."""
    may_end = instance.state == "reducing" and fence == instance.step_fence
    return fence <= instance.step_fence and fence != instance.result_fence and not may_end


def made_so_far(instance: Instance) -> Seal | None:
    """Return the seal of the items that exist for certain: all, or those of a streaming split so far. `None`: none
    yet."""
    return instance.seal or (instance.staged[-1] if instance.staged else None)


def known_items(instance: Instance) -> int | None:
    """Return how many items the instance has. `None`: not known yet."""
    made = made_so_far(instance) if instance.state in FINAL else instance.seal
    return None if made is None else made.items


def fence_of(instance: Instance, chunk: int) -> int:
    """Return the fence under which a released chunk stands."""
    made = (*instance.staged, *((instance.seal,) if instance.seal is not None else ()))
    return next((each.fence for each in made if chunk < each.chunks), instance.step_fence)


def first_round(instance: Instance, chunk: int) -> int:
    """Return the number of the first round of a chunk in the present pass."""
    return _first_round(instance.passes, instance.first_new, chunk)


def earlier_rounds(instance: Instance, chunk: int) -> list[int]:
    """Return the first rounds of a chunk in earlier passes. Each of them has a result."""
    passes = enumerate(instance.past, instance.passes - len(instance.past))
    return [_first_round(number, past.first_new, chunk) for number, past in passes if chunk < past.released]


def _first_round(number: int, first_new: int | None, chunk: int) -> int:
    return 1 if first_new is not None and chunk >= first_new else (number - 1) * ROUNDS + 1


def round_of_pass(number: int) -> int:
    """Return which attempt within its pass a round is, from 1."""
    return (number - 1) % ROUNDS + 1


def faults(instance: Instance) -> list[str]:
    """Return the rules that the record breaks, empty if it is sound."""
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
