"""What a platform allows, learned from its answers: how it falls when the platform refuses, and how it rises again.

One refusal does not say why it came. A limit refuses by the pace, and some platforms refuse now and then at any pace.
So a refusal is followed by a trial at a lower pace, and what happens there decides:

- No refusal, or far fewer of them: the pace was the reason. The limit stays.
- As many refusals as before: the pace is not the reason. The limit is lifted, and so many refusals (`noise`) do not
  lower the pace again.
- One refusal after the other, or as many answers between two of them each time: the pace is still too high. It falls
  to what the platform took since the refusal before: of a bucket, and of a count by the minute, that is the limit.

The pace of a trial is 85 % of what the platform really took, with the waits that it wanted (`mark`). From there it
rises along a cubic curve (RFC 9438): soon near the mark, slowly past it, and fast once it is clear of it. So a mark
that was taken too low does not last, and a limit is met again only now and then. The curve is a function of time:
recovery needs no write. What a platform tells of its limit (`told`) holds beside that, and neither falls nor rises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import sqrt
from typing import Literal, NamedTuple

from msgspec.structs import replace

from actors.fetch.rules.ledger import Limit

SAFE = 0.85
CLEAR = 0.95
"""A pace below this part of the mark is clearly lower than the one that was refused."""
DENSE = 0.2
"""If this part of the requests is refused, or more, then that is hardly chance."""
SURE = 2
"""If that came so often before, one time after the other, it is no chance."""
DECIDES = 3
"""So many refusals of trials decide, and one more if they follow each other closely or evenly."""
HELPED = 4
"""If refusals are so many times rarer at the lower pace, then the pace was their reason."""
EVEN, ALIKE = 3, 1.5
"""Chance seldom leaves three gaps between refusals that differ by no more than half. A pace that is a little too high
for a bucket always does."""
STRANGE_RUN, STRANGE_EVEN, STRANGE_MORE = 4, 8, 4.0
"""Where refusals by chance are known, an hour of them has one time or another a run of three, six gaps alike, and a
minute with three standard deviations more than usual. Only what no day of chance has is a limit."""
FEW, MOST_FALL = 2, 8
"""A rate that a few answers show may be too low. It counts so many answers more, and falls by this at most."""
MOST_NOISE = 0.1
LONG_AGO = 10.0
"""Without a refusal in so many times the requests that usually have one, the noise is over."""
MANY = 20
"""So many answers show what the platform takes. With fewer, the pace falls by half at most."""
LEAST_PER_S = 1 / 3_600
FEW_STEPS, STEPS = 10, 30
"""The pace is back at the mark after so many waits (more if the first one was too short), and so many requests."""
NEAR = 1.1
"""That time doubles if the limit is met again there: no farther than this above the mark."""
LEAST_CALM_MS, MOST_CALM_MS = 30_000, 600_000
SLOW_PER_S, KEPT = 0.4, 32
"""At such a pace all nodes know of each answer: the limit keeps the last ones. Each node alone would see too few, and
take what it does not see for a refusal after the other."""
UNDER_WAY_MS = 1_000
"""Requests that were sent together are refused together."""
CHANCE_WAIT_MS = 1_000
"""How long a request waits that was refused by chance, if the platform names no wait. At a slow pace it is longer."""
MINUTES = 6
"""The second wait that the platform does not name is so many times the setting, from the first request on: with the
default setting a minute, by which many platforms count."""
ROUGH = 1.25
"""A told rate that is a mean changes by less than so much without anything to learn from it."""
LATEST = 0.1
"""So much does one answer count in that mean."""
SPARE_MS = 1_000
SPAN_MS = 60_000
MOST_TIMES = 2_000


class PaceRefusal(NamedTuple):
    """A refusal, as the node sees it that met it.

    `answers`, `refused`: how many requests of this node the platform took and refused in the last minute, but not
    before the limit was met last, this refusal included. `span_ms`: since the first of these answers. `trial_refused`:
    refusals since the limit was met last. `later`: answers after the first of them, in `later_ms`. `is_again`: the
    platform took none since it refused one. `part`: this node's part of the requests of all nodes. `named_ms`: the wait
    that the platform names. `most_per_s`: our own rate. `since`: answers of the last stretch that had some, and
    `since_ms`: since the refusal before it. 0: there was none. `even`: so many times in a row there were about as many
    answers between two refusals. `run`: so many refusals had no answer in between."""

    answers: int
    refused: int
    span_ms: int
    trial_refused: int
    later: int
    later_ms: int
    is_again: bool
    named_ms: int | None
    most_per_s: float
    part: float = 1.0
    since: int = 0
    since_ms: int = 0
    even: int = 0
    run: int = 1

    @property
    def share(self) -> float:
        """Which part of the requests was refused, this one left out if there were others."""
        if self.trial_refused < 2:
            return 1 / (max(self.answers, self.since) / self.part + 1)
        return (self.trial_refused - 1) / (self.later + self.trial_refused - 1)

    @property
    def noise(self) -> float:
        """Which part is refused at any pace, if the pace is not the reason."""
        share = self.refused / (self.answers + self.refused) if self.refused >= DECIDES else self.share
        return min(MOST_NOISE, share)


class PaceVerdict(NamedTuple):
    """`limit`: what is known now. `wait_ms`: until the refused request may go again. `is_chance`: the other requests
    need not wait."""

    limit: Limit | None
    wait_ms: int
    is_chance: bool = False


class RecentAnswers:
    """When the platform took this node's requests lately, and when it refused one. State: in memory."""

    def __init__(self) -> None:
        self._taken: deque[int] = deque(maxlen=MOST_TIMES)
        self._refused: deque[int] = deque(maxlen=MOST_TIMES)
        self._gaps: deque[int] = deque(maxlen=STRANGE_EVEN)
        self._began_ms = self._run = 0
        self._each_s = 0.0

    @classmethod
    def of(cls, heard: Sequence[int]) -> RecentAnswers:
        """Return what all nodes have heard at a slow pace (`Limit.heard`)."""
        made = cls()
        for at_ms in heard:
            if at_ms > 0:
                made.add(at_ms)
            else:
                made._note_refusal(-at_ms)
        return made

    def add(self, now_ms: int) -> None:
        self._taken.append(now_ms)

    def mean_per_s(self, per_s: float) -> float:
        """Return the mean of told rates that differ with the cost of each request. They are above 0."""
        self._each_s = self._each_s * (1 - LATEST) + LATEST / per_s if self._each_s else 1 / per_s
        return 1 / self._each_s

    def refusal(
        self, limit: Limit | None, named_ms: int | None, most_per_s: float, part: float, now_ms: int
    ) -> PaceRefusal:
        """Return the refusal of a request now."""
        met_ms = 0 if limit is None else limit.met_ms
        trial_ms = met_ms + UNDER_WAY_MS
        since_ms = max(trial_ms, now_ms - SPAN_MS)
        last_ms = self._note_refusal(now_ms)
        taken = [at_ms for at_ms in self._taken if at_ms >= since_ms]
        first_ms = next((at_ms for at_ms in self._refused if at_ms >= trial_ms), now_ms)
        return PaceRefusal(
            answers=len(taken),
            refused=sum(at_ms >= since_ms for at_ms in self._refused),
            span_ms=now_ms - taken[0] if taken else 0,
            trial_refused=sum(at_ms >= trial_ms for at_ms in self._refused),
            later=sum(at_ms > first_ms for at_ms in self._taken),
            later_ms=now_ms - first_ms,
            is_again=last_ms >= met_ms > 0 and not any(at_ms > last_ms for at_ms in self._taken),
            named_ms=named_ms,
            most_per_s=most_per_s,
            part=part,
            since=self._gaps[-1] if self._began_ms else 0,
            since_ms=now_ms - self._began_ms if self._began_ms else 0,
            even=alike(self._gaps),
            run=self._run,
        )

    def _note_refusal(self, now_ms: int) -> int:
        """Return when the refusal before it was."""
        last_ms = self._refused[-1] if self._refused else 0
        self._refused.append(now_ms)
        self._note_gap(sum(at_ms > last_ms for at_ms in self._taken), last_ms)
        return last_ms

    def _note_gap(self, answers: int, last_ms: int) -> None:
        """Note how many answers came since the last refusal. Without any, it is the same stretch that goes on."""
        if answers:
            self._gaps.append(answers)
            self._began_ms, self._run = last_ms, 1
        else:
            self._run += 1


def alike(gaps: Sequence[int]) -> int:
    """Return how many of the last gaps are about as long as each other."""
    low = high = gaps[-1] if gaps else 0
    for count, gap in enumerate(reversed(gaps)):
        low, high = min(low, gap), max(high, gap)
        if high > ALIKE * low + 1:
            return count
    return len(gaps)


def allowed(limit: Limit | None, now_ms: int) -> float | None:
    """Return how many requests a second the limit allows now. `None`: it sets none."""
    if limit is None or not limit.per_s:
        return None
    passed = (now_ms - limit.met_ms) / max(1, limit.calm_ms) - 1
    return limit.per_s / SAFE * (1 + (1 - SAFE) * passed**3)


def is_slow(limit: Limit | None, now_ms: int) -> bool:
    """Return whether the pace is so slow that all nodes know of each answer."""
    return 0 < (allowed(limit, now_ms) or 0.0) <= SLOW_PER_S


def heard(limit: Limit | None, at_ms: int) -> Limit | None:
    """Return the limit after an answer at a time, or a refusal (below 0). The same object where the pace is fast."""
    if limit is None or not is_slow(limit, abs(at_ms)):
        return limit if limit is None or not limit.heard else replace(limit, heard=())
    return replace(limit, heard=(*limit.heard, at_ms)[-KEPT:])


def met(limit: Limit | None, refusal: PaceRefusal, own_wait_ms: int, now_ms: int, *, most_wait_ms: int) -> PaceVerdict:
    """Return what a refusal shows. `own_wait_ms`: our setting, for a platform that names no wait."""
    found = _met(limit, refusal, own_wait_ms, now_ms, most_wait_ms)
    kept = () if limit is None else limit.heard
    after = found.limit if found.limit is None else replace(found.limit, heard=kept)
    return found._replace(limit=heard(after, -now_ms) if kept or is_slow(after, now_ms) else found.limit)


def _met(limit: Limit | None, refusal: PaceRefusal, own_wait_ms: int, now_ms: int, most_wait_ms: int) -> PaceVerdict:
    known = limit or Limit(0.0, 0)
    if now_ms < known.met_ms + UNDER_WAY_MS:
        wait_ms = max(own_wait_ms if refusal.named_ms is None else refusal.named_ms, known.until_ms - now_ms)
        wait_ms = min(wait_ms, most_wait_ms)
        return PaceVerdict(held(limit, now_ms + wait_ms), wait_ms)
    shows = _shown(known, refusal, now_ms)
    turn_ms = max(min(own_wait_ms, CHANCE_WAIT_MS), int(1_000 / (allowed(known, now_ms) or refusal.most_per_s)))
    if shows == "chance":
        named = turn_ms if refusal.named_ms is None else refusal.named_ms
        return PaceVerdict(limit, min(named, most_wait_ms), is_chance=True)
    wait_ms = min(_wait_ms(known, refusal, own_wait_ms), most_wait_ms)
    if shows == "nothing" and refusal.named_ms is None:
        wait_ms = min(turn_ms, most_wait_ms)
    until_ms = now_ms + wait_ms
    match shows:
        case "nothing":
            return PaceVerdict(replace(held(known, until_ms), tried=known.tried + 1), wait_ms)
        case "helped":
            return PaceVerdict(replace(known, noise=refusal.noise, until_ms=max(until_ms, known.until_ms)), wait_ms)
        case "in vain":
            return PaceVerdict(
                Limit(0.0, now_ms, until_ms, noise=refusal.noise, told=known.told, burst=known.burst), wait_ms
            )
        case "too fast":
            return PaceVerdict(_fallen(known, refusal, now_ms, wait_ms), wait_ms)


def told(limit: Limit | None, per_s: float | None, burst: int | None = None, *, is_rough: bool = False) -> Limit:
    """Return the limit after the platform has said what it allows a second and at once. The same object if it has said
    so before. `is_rough`: the rate is a mean, and a small change of it is none."""
    known = limit or Limit(0.0, 0)
    pace = known.told if per_s is None else max(LEAST_PER_S, per_s)
    if is_rough and known.told / ROUGH < pace < known.told * ROUGH:
        pace = known.told
    at_once = known.burst if burst is None else burst
    return known if (known.told, known.burst) == (pace, at_once) else replace(known, told=pace, burst=at_once)


def held(limit: Limit | None, until_ms: int) -> Limit:
    """Return the limit after the platform wants nothing until then. The same object if that was known."""
    known = limit or Limit(0.0, 0)
    return known if until_ms <= known.until_ms else replace(known, until_ms=until_ms)


Shown = Literal["chance", "nothing", "helped", "in vain", "too fast"]


def _shown(known: Limit, refusal: PaceRefusal, now_ms: int) -> Shown:
    """Return what a refusal shows. `chance`: nothing new. `nothing`: the trial goes on. `helped`: the lower pace has
    fewer refusals, and those that are left are chance. `in vain`: it has as many as before."""
    if not known.per_s or not _is_slow(known, now_ms):
        is_odd = refusal.even >= STRANGE_EVEN or refusal.run >= STRANGE_RUN
        is_chance = known.noise and not is_odd and _is_usual(refusal, known.noise)
        return "chance" if is_chance else "too fast"
    if refusal.is_again and (not known.noise or refusal.run > SURE):
        return "too fast"
    is_dense = refusal.share >= DENSE
    if (is_dense and (known.dense or known.tried >= DECIDES)) or refusal.even >= EVEN:
        return "too fast"
    if known.odd + known.tried + 1 < DECIDES + (is_dense or refusal.even == EVEN - 1) + (refusal.part < 1):
        return "nothing"
    if refusal.share * HELPED >= known.share:
        return "in vain"
    return "chance" if known.noise else "helped"


def _is_slow(known: Limit, now_ms: int) -> bool:
    return (allowed(known, now_ms) or 0.0) <= CLEAR * known.mark


def _is_usual(refusal: PaceRefusal, noise: float) -> bool:
    """Return whether so many refusals are no more than chance makes, and no fewer."""
    expected = noise * (refusal.answers + refusal.refused)
    is_over = refusal.refused == 1 and expected > LONG_AGO
    return not is_over and refusal.refused < expected + 2 + STRANGE_MORE * sqrt(expected)


def _fallen(known: Limit, refusal: PaceRefusal, now_ms: int, wait_ms: int) -> Limit:
    before = min(each for each in (refusal.most_per_s, allowed(known, now_ms), known.told) if each)
    is_slow, is_dense = bool(known.per_s) and _is_slow(known, now_ms), refusal.share >= DENSE
    over_ms, taken, is_few = refusal.span_ms + wait_ms, refusal.answers / refusal.part, refusal.answers < MANY
    is_certain = refusal.even >= EVEN or (is_dense and known.dense >= SURE)
    is_sure = is_certain or (refusal.is_again and refusal.part == 1)
    if known.per_s and is_sure and refusal.since:
        over_ms, taken, is_few = refusal.since_ms, refusal.since / refusal.part, False
        if not is_certain:
            taken = max(taken + FEW, before * over_ms / (1_000 * MOST_FALL))
    elif refusal.trial_refused > 1 and known.per_s:
        over_ms, taken, is_few = refusal.later_ms, refusal.later / refusal.part, refusal.later < MANY
    elif refusal.is_again and known.mark:  # the wait was too short, and nothing else is new
        over_ms = known.over_ms + max(0, now_ms - known.until_ms) + wait_ms
        taken, is_few = max(known.took, before * over_ms / (1_000 * MOST_FALL)), False
    mark, calm_ms = max(taken, 1) * 1_000 / max(1, over_ms), (STEPS if refusal.is_again else FEW_STEPS) * wait_ms
    if known.per_s and not is_slow and not is_dense:  # it has risen slowly to where the limit is
        calm_ms = max((2 if before <= NEAR * known.mark else 1) * known.calm_ms, calm_ms)
        mark = before
        if known.tried and refusal.since > EVEN:
            mark = min(before, max(before / 2, refusal.since * 1_000 / refusal.since_ms / refusal.part))
    elif not known.per_s and not is_dense and refusal.named_ms is None and not refusal.is_again:
        sent = before if is_few else taken * 1_000 / max(1, refusal.span_ms)
        mark = min(before, sent)  # it may be chance, and nobody names a wait
    elif is_few:
        mark = max(mark, before / 2)
    if known.told and known.told <= mark:  # what was too much is what we sent at once
        return replace(known, met_ms=now_ms, until_ms=now_ms + wait_ms)
    per_s = max(LEAST_PER_S, SAFE * min(before, mark))
    if known.noise and not is_slow:
        mark = before  # what was refused there, and not what it took: the trial lasts until it is clear
    if is_sure and known.per_s:
        wait_ms = max(wait_ms, int(1_000 / per_s))
    return Limit(
        per_s,
        now_ms,
        now_ms + wait_ms,
        mark=mark,
        over_ms=over_ms,
        took=taken,
        calm_ms=max(LEAST_CALM_MS, min(MOST_CALM_MS, calm_ms), int(STEPS * 1_000 / per_s)),
        share=known.share if is_slow else refusal.share,
        noise=known.noise,
        dense=known.dense + 1 if is_dense or refusal.is_again else 0,
        odd=_odd(known, is_slow=is_slow),
        told=known.told,
        burst=known.burst,
    )


def _odd(known: Limit, *, is_slow: bool) -> int:
    """Return how many refusals no limit explains: those of a trial at a pace that was clearly lower, far between."""
    if not known.per_s or is_slow:
        return 0
    return known.odd + known.tried if known.tried else max(0, known.odd - 1)


def _wait_ms(known: Limit, refusal: PaceRefusal, own_wait_ms: int) -> int:
    """Return how long to send nothing. If the platform took none since it refused last, that wait was too short."""
    wait_ms = own_wait_ms if refusal.named_ms is None else refusal.named_ms
    before_ms = known.until_ms - known.met_ms
    if not refusal.is_again or before_ms <= 0 or (refusal.named_ms is not None and 2 * wait_ms < before_ms):
        return wait_ms
    if refusal.named_ms is None and before_ms <= own_wait_ms and not known.noise:
        return max(2 * before_ms, MINUTES * own_wait_ms - known.over_ms + SPARE_MS)
    return max(wait_ms, 2 * before_ms)
