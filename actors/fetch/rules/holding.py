"""What a holder does with a slice: take, complete, fail, release, halve, give up. And what happens when it goes silent.

Every move names the slice and the fence that the holder got at its take. If the ledger no longer has this fence, epoch
or slice, the move returns `StaleFence` and changes nothing. So a late message of an old holder has no effect, even if
its delivery is settled (JetStream does not fence a delivery). The queue's message is only a pointer: write the ledger
first, then settle the message. Offers are repeated from the ledger, so a message may be dropped at any time.

Each move returns `(ledger, result)`. The ledger is the same object if nothing changed.
"""

import msgspec
from msgspec.structs import replace

from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, Shortfall, find_open, revised
from actors.fetch.rules.outages import answered, earliest_ms, lengthened, may_take, others_read
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.slices import MalformedSliceId, middle_ms, parse_slice_id
from actors.fetch.rules.tuning import read
from actors.runtime.rules.texts import span_text
from streams.backoff import Backoff, next_delay_ms

MAX_REASON = 300
"""Characters of a reason that the record keeps: a ledger is one message, and a platform's error page is long."""
MAX_PARKED = 700
"""The same for the reason of a parked source, which may quote the platform."""
TRUST = 3
"""How many windows in a row may have no readable row before we stop blaming the rows. The same for refused windows."""


class Taken(msgspec.Struct, frozen=True):
    """The slice is the caller's, under `slice.fence`, once the ledger is written."""

    slice: OpenSlice


class Wait(msgspec.Struct, frozen=True):
    """Not before `until_ms`. Give the message back until then, or drop it: the slice is offered again then."""

    until_ms: int


class StaleFence(msgspec.Struct, frozen=True):
    """The ledger does not have, or no longer has, the caller's slice and fence. Settle the message and forget it."""

    why: str


class Completed(msgspec.Struct, frozen=True):
    """The slice is complete."""

    slice: OpenSlice


class Retried(msgspec.Struct, frozen=True):
    """The slice is open again with its next attempt, to be offered at `slice.not_before_ms`."""

    slice: OpenSlice


class Released(msgspec.Struct, frozen=True):
    """The slice is open again with the same attempt, to be offered at `slice.not_before_ms`."""

    slice: OpenSlice


class ReleasedDown(msgspec.Struct, frozen=True):
    """The slice is open again with the same attempt, and its source is down."""

    slice: OpenSlice


class Halved(msgspec.Struct, frozen=True):
    """Two slices replace the one, with its attempt, to be offered at once."""

    slices: tuple[OpenSlice, OpenSlice]


class TooNarrow(msgspec.Struct, frozen=True):
    """The window is a single step of the platform's clock: it cannot be split."""


class GaveUp(msgspec.Struct, frozen=True):
    """The slice is a hole now, and an administrator must get a notice."""

    hole: Hole


def take(
    ledger: Ledger, slice_id: str, holder: str, now_ms: int, *, most_losses: int = 10
) -> tuple[Ledger, Taken | Wait | StaleFence | GaveUp]:
    """Give the slice to `holder` under a new fence, the ledger's highest.

    A slice that another node holds is given as well. Its message is redelivered only after the ack wait, so that holder
    is dead or cut off, and its fence is void from here on. That is a loss, not a failed attempt. A slice that was lost
    more than `most_losses` times kills its holders, and is given up.

    `Wait`: the slice's own wait or the source's hold lasts. `StaleFence`: the slice is not open, the source is stopped,
    or the source is down and another slice is its probe.
    """
    held = _find(ledger, slice_id)
    if isinstance(held, StaleFence):
        return ledger, held
    if ledger.state != "running":
        return ledger, StaleFence(f"the source is {ledger.state}")
    if not may_take(ledger, held):
        return ledger, StaleFence("the source is down, and another slice is its probe")
    due_ms = earliest_ms(ledger, held)
    if due_ms > now_ms:
        return ledger, Wait(due_ms)
    losses = held.losses + held.is_taken
    if losses > most_losses and held.is_look:
        return _dropped(ledger, held), StaleFence(f"{slice_id} is a look, and its holders vanished")
    if losses > most_losses:
        return _give_up(ledger, held, f"{losses} holders vanished, the last one {held.holder}", now_ms)
    fence = ledger.fence + 1
    mine = replace(held, fence=fence, holder=holder, taken_ms=now_ms, losses=losses)
    return replace(ledger, fence=fence, open=_swapped(ledger, held, mine)), Taken(mine)


def complete(
    ledger: Ledger, slice_id: str, fence: int, now_ms: int, *, is_readable: bool | None = None, rows: int | None = None
) -> tuple[Ledger, Completed | StaleFence]:
    """End the slice: everything in its window has been stored. The watermark moves if it waited for this slice, and the
    source is not down any more. `is_readable`: whether any row of it could be read. `None`: it had no rows. `rows`: how
    many it had, by which the lengths of later slices are tuned."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    ledger = _tuned(ledger, held, held.length_ms, rows)
    after = _judged(revised(ledger, open=others_read(_swapped(ledger, held))), is_readable)
    after = replace(after, answers=TRUST) if after.answers != TRUST else after
    return answered(after, now_ms), Completed(held)


def advance(
    ledger: Ledger, slice_id: str, fence: int, upto_ms: int, now_ms: int, *, rows: int | None = None
) -> tuple[Ledger, OpenSlice | StaleFence]:
    """End the part of the slice before `upto_ms`, which has been stored. The rest stays open under the same fence, with
    its first attempt, and is returned. What is known of its failures was about its beginning."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    assert held.start_ms < upto_ms < held.end_ms
    rest = replace(held, start_ms=upto_ms, attempt=1, misses=0, others_read=False, anew=0, losses=0)
    tuned = _tuned(ledger, held, upto_ms - held.start_ms, rows)
    after = revised(replace(tuned, answers=TRUST), open=others_read(_swapped(ledger, held, rest)))
    return answered(after, now_ms), find_open(after, rest) or rest


def _tuned(ledger: Ledger, held: OpenSlice, length_ms: int, rows: int | None) -> Ledger:
    if rows is None or ledger.tuning is None or held.kind != "t":
        return ledger
    return replace(ledger, tuning=read(ledger.tuning, length_ms, rows))


def fail(
    ledger: Ledger,
    slice_id: str,
    fence: int,
    reason: str,
    policy: Backoff,
    now_ms: int,
    *,
    chance: float,
    least_wait_ms: int = 0,
) -> tuple[Ledger, Retried | GaveUp | StaleFence]:
    """Raise the attempt and wait by `policy` (no less than `least_wait_ms`), or give up after the last attempt."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    return _failed(ledger, held, reason, policy, now_ms, chance=chance, least_wait_ms=least_wait_ms)


def miss(
    ledger: Ledger,
    slice_id: str,
    fence: int,
    reason: str,
    policy: Backoff,
    now_ms: int,
    *,
    chance: float,
    least_wait_ms: int = 0,
) -> tuple[Ledger, Retried | ReleasedDown | GaveUp | StaleFence]:
    """Give the slice back after an attempt in which the platform gave no response at all.
    The source is down from here on, and no attempt is spent. But if other slices of it were read since this slice's
    last miss, the platform cannot answer for this window: it fails, as by `fail`."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    if held.others_read:
        return _failed(ledger, held, reason, policy, now_ms, chance=chance, least_wait_ms=least_wait_ms)
    free = replace(_freed(held, now_ms + 1, reason), misses=held.misses + 1, others_read=False)
    outage = lengthened(ledger, held, free.reason, policy, now_ms, chance=chance, least_wait_ms=least_wait_ms)
    return replace(ledger, open=_swapped(ledger, held, free), outage=outage), ReleasedDown(free)


def fall_short(
    ledger: Ledger,
    slice_id: str,
    fence: int,
    short: Shortfall,
    reason: str,
    policy: Backoff,
    now_ms: int,
    *,
    chance: float,
    is_readable: bool | None,
) -> tuple[Ledger, Retried | GaveUp | StaleFence]:
    """Try an incomplete window once more, since an order that moved meanwhile may be the cause. The second time it
    becomes a hole: reading it the same way again would miss the same orders."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    known = replace(held, short=short, misses=0)
    marked = _judged(replace(ledger, open=others_read(_swapped(ledger, held, known)), answers=TRUST), is_readable)
    if held.short is not None:
        return _give_up(marked, known, reason, now_ms)
    return _failed(marked, known, reason, policy, now_ms, chance=chance)


def misread(
    ledger: Ledger,
    slice_id: str,
    fence: int,
    reason: str,
    said: str,
    policy: Backoff,
    now_ms: int,
    *,
    chance: float,
    of_rows: bool,
) -> tuple[Ledger, Retried | GaveUp | Released | StaleFence]:
    """Fail the slice, whose responses are not as declared. If the source is not known to have readable rows, the second
    such failure parks it: the declaration is wrong, and every window would fail in the same way. Windows that are given
    up for it use up the trust in the source. `of_rows`: its rows cannot be read. One readable answer shows that this is
    not the declaration, even in the middle of another window."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    if ledger.state == "parked":
        return release(ledger, slice_id, fence, now_ms, reason=reason)
    is_declaration = not (of_rows and ledger.has_readable)
    if ledger.trust < 0 and is_declaration:
        return park(replace(ledger, trust=0), slice_id, fence, _quoted(reason, said), now_ms)
    after, result = _failed(ledger, held, reason, policy, now_ms, chance=chance)
    if ledger.trust == 0 and is_declaration:
        return replace(after, trust=-1), result
    return (_judged(after, is_readable=False) if isinstance(result, GaveUp) else after), result


def had_readable(ledger: Ledger) -> Ledger:
    """Note that an answer of the source could be read, in a window that is not read to its end."""
    return ledger if ledger.has_readable or ledger.trust > 0 else replace(ledger, has_readable=True)


def refused(
    ledger: Ledger,
    slice_id: str,
    fence: int,
    reason: str,
    said: str,
    policy: Backoff,
    now_ms: int,
    *,
    chance: float,
) -> tuple[Ledger, Retried | GaveUp | Released | StaleFence]:
    """Give up the slice, whose request the platform refuses for good. If no request of the source was ever answered,
    the second such refusal parks it: the path, a parameter or the account is wrong, and every window would become a
    hole in the same way. So it is after some refused windows in a row."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    if ledger.state == "parked":
        return release(ledger, slice_id, fence, now_ms, reason=reason)
    if ledger.answers < 0:
        return park(replace(ledger, answers=0), slice_id, fence, _quoted(reason, said), now_ms)
    if ledger.answers == 0:
        after, result = _failed(ledger, held, reason, policy, now_ms, chance=chance)
        return replace(after, answers=-1), result
    return give_up(replace(ledger, answers=ledger.answers - 1), slice_id, fence, reason, now_ms)


def _quoted(reason: str, said: str) -> str:
    return f"{reason[:MAX_REASON]}; the platform said: {said[:MAX_REASON] or 'nothing'}"


def drop(ledger: Ledger, slice_id: str, fence: int) -> tuple[Ledger, StaleFence]:
    """End a slice of a look that was not read to its end. It leaves no hole, since the tail reads its time as well."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    assert held.is_look
    return _dropped(ledger, held), StaleFence(f"{slice_id} is a look, and is not tried again")


def _dropped(ledger: Ledger, held: OpenSlice) -> Ledger:
    return revised(ledger, open=_swapped(ledger, held))


def give_up(ledger: Ledger, slice_id: str, fence: int, reason: str, now_ms: int) -> tuple[Ledger, GaveUp | StaleFence]:
    """Make the slice a hole at once: no further attempt can end otherwise."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    return _give_up(ledger, held, reason, now_ms)


def release(
    ledger: Ledger,
    slice_id: str,
    fence: int,
    now_ms: int,
    *,
    not_before_ms: int = 0,
    hold_until_ms: int = 0,
    reason: str = "",
    anew: bool = False,
) -> tuple[Ledger, Released | StaleFence]:
    """Give the slice back with its attempt unchanged: the platform throttled, or the node stops. `hold_until_ms` holds
    back the whole source. A hold that is already longer stands. `anew`: the attempt began the window anew."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    free = _freed(held, max(not_before_ms, now_ms + 1), reason)
    free = replace(free, anew=free.anew + 1) if anew else free
    hold_ms = max(ledger.hold_until_ms, hold_until_ms)
    return replace(ledger, open=_swapped(ledger, held, free), hold_until_ms=hold_ms), Released(free)


def park(ledger: Ledger, slice_id: str, fence: int, reason: str, now_ms: int) -> tuple[Ledger, Released | StaleFence]:
    """Give the slice back and stop the source until a person resumes it: the platform refuses it for good."""
    after, result = release(ledger, slice_id, fence, now_ms, reason=reason)
    if isinstance(result, StaleFence):
        return ledger, result
    return replace(after, state="parked", reason=reason[:MAX_PARKED]), result


def split(
    ledger: Ledger, slice_id: str, fence: int, now_ms: int, *, step_ms: int = 1000
) -> tuple[Ledger, Halved | TooNarrow | StaleFence]:
    """Replace the slice by two halves, cut at a whole `step_ms`: it was too much for one attempt.
    The halves keep the attempt, so that failing and splitting together come to an end. `TooNarrow`, with nothing
    changed, if no step lies inside the window: let it fail instead."""
    held = _held(ledger, slice_id, fence)
    if isinstance(held, StaleFence):
        return ledger, held
    middle = middle_ms(held.start_ms, held.end_ms, step_ms)
    if middle is None:
        return ledger, TooNarrow()
    free = replace(_freed(held, now_ms + 1, "split"), misses=0, others_read=False, anew=0)
    first, second = replace(free, end_ms=middle), replace(free, start_ms=middle)
    return revised(ledger, open=_swapped(ledger, held, first, second)), Halved((first, second))


def expire(
    ledger: Ledger, settings: FetchSettings, now_ms: int, *, chance: float
) -> tuple[Ledger, tuple[Retried | GaveUp, ...]]:
    """Take every slice away from a holder that has had it for `stale_after` or longer. It gets its next attempt, or
    becomes a hole.
    For the monitor. It is the second check. A dead holder's message comes again after the ack wait. This one catches
    slices whose message was lost, and holders that live and hang."""
    results: list[Retried | GaveUp] = []
    after = ledger
    for held in ledger.open:
        if held.is_taken and held.taken_ms + settings.stale_after_ms <= now_ms and held.is_look:
            after = _dropped(after, held)
        elif held.is_taken and held.taken_ms + settings.stale_after_ms <= now_ms:
            reason = f"{held.holder} held it for {span_text(now_ms - held.taken_ms)} without an end"
            after, result = _failed(after, held, reason, settings.retry_policy, now_ms, chance=chance)
            results.append(result)
    return after, tuple(results)


def _find(ledger: Ledger, slice_id: str) -> OpenSlice | StaleFence:
    try:
        piece = parse_slice_id(slice_id)
    except MalformedSliceId as error:
        return StaleFence(str(error))
    if piece.epoch != ledger.epoch:
        return StaleFence(f"{slice_id} is of epoch {piece.epoch}, the ledger of {ledger.epoch}")
    return find_open(ledger, piece) or StaleFence(f"{slice_id} is not open")


def _held(ledger: Ledger, slice_id: str, fence: int) -> OpenSlice | StaleFence:
    held = _find(ledger, slice_id)
    if isinstance(held, StaleFence):
        return held
    if fence < 1 or held.fence != fence:
        return StaleFence(f"{slice_id} is held under fence {held.fence}, not {fence}")
    return held


def _swapped(ledger: Ledger, old: OpenSlice, *new: OpenSlice) -> tuple[OpenSlice, ...]:
    """Return the open slices with `new` (none, one or more) in the place of `old`."""
    at = ledger.open.index(old)
    return (*ledger.open[:at], *new, *ledger.open[at + 1 :])


def _freed(held: OpenSlice, not_before_ms: int, reason: str, attempt: int | None = None) -> OpenSlice:
    """Return `held` without a holder. It waits at least until after now, so that earlier offers of it are void."""
    return replace(
        held,
        fence=0,
        holder="",
        taken_ms=0,
        not_before_ms=not_before_ms,
        reason=reason[:MAX_REASON],
        attempt=held.attempt if attempt is None else attempt,
    )


def _failed(
    ledger: Ledger,
    held: OpenSlice,
    reason: str,
    policy: Backoff,
    now_ms: int,
    *,
    chance: float,
    least_wait_ms: int = 0,
) -> tuple[Ledger, Retried | GaveUp]:
    if policy.is_last(held.attempt):
        return _give_up(ledger, held, reason, now_ms)
    attempt = held.attempt + 1
    wait_ms = max(least_wait_ms, next_delay_ms(attempt, policy, chance=chance))
    free = replace(_freed(held, now_ms + wait_ms, reason, attempt), others_read=False)
    return replace(ledger, open=_swapped(ledger, held, free)), Retried(free)


def _give_up(ledger: Ledger, held: OpenSlice, reason: str, now_ms: int) -> tuple[Ledger, GaveUp]:
    hole = Hole(
        held.kind,
        held.epoch,
        held.start_ms,
        held.end_ms,
        since_ms=now_ms,
        attempts=held.attempt,
        reason=reason[:MAX_REASON],
        pass_name=held.pass_name,
        short=held.short,
    )
    return revised(ledger, open=_swapped(ledger, held), holes=(*ledger.holes, hole)), GaveUp(hole)


def _judged(ledger: Ledger, is_readable: bool | None) -> Ledger:
    """Return the ledger with its trust after a window whose rows could, or could not, be read."""
    if is_readable is None or (not is_readable and ledger.trust <= 0):
        return ledger
    trust = TRUST if is_readable else ledger.trust - 1
    return replace(ledger, trust=trust, has_readable=ledger.has_readable and trust > 0)
