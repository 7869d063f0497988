"""The exhaustive search holds for the real rules, and sees through every rule that is known to be bad."""

import pytest
from msgspec.structs import replace

from actors.fetch.rules.cutting import cut, offers_due
from actors.fetch.rules.holding import Completed, StaleFence, complete
from actors.fetch.rules.ledger import Ledger, OpenSlice, find_open, revised
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.slices import parse_slice_id
from tests.unit.fetch.search import LATE, Finding, Rules, World, search

TWO_OPEN = FetchSettings(slice_ms=10, settle_ms=0, max_open=2, again_ms=(), retries=10**6)
LONGER = replace(TWO_OPEN, slice_ms=20)
NO_RETRY = replace(TWO_OPEN, retries=0)


def told(finding: Finding) -> str:
    steps = "".join(f"\n  {i + 1:2} {label}" for i, label in enumerate(finding.trace))
    return f"{finding.states} states, {finding.steps} steps; {finding.broken or 'every rule held'}{steps}"


def test_no_gap_no_double_and_no_lost_slice_whatever_dies_and_whenever() -> None:
    finding = search(World(settings=TWO_OPEN))
    assert not finding.broken, told(finding)
    assert finding.states > 50_000, "the search has lost most of its world"


@pytest.mark.parametrize(("at_first", "later"), [(TWO_OPEN, LONGER), (LONGER, TWO_OPEN)], ids=["longer", "shorter"])
def test_open_slices_keep_their_windows_when_the_length_changes(at_first: FetchSettings, later: FetchSettings) -> None:
    finding = search(World(settings=at_first, other=later, until_ms=20))
    assert not finding.broken, told(finding)


def test_holes_hold_the_watermark_back_and_can_be_read_again() -> None:
    finding = search(World(settings=NO_RETRY, until_ms=20, may_fail=True))
    assert not finding.broken, told(finding)


def test_a_platform_that_answers_nothing_for_a_while_costs_no_slice() -> None:
    """Whoever dies meanwhile, and whichever window it was asked for."""
    finding = search(World(settings=replace(NO_RETRY, max_open=3), until_ms=30, may_miss=True, of_each=1))
    assert not finding.broken, told(finding)


def test_accepted_holes_let_the_watermark_pass_and_can_be_read_again_behind_it() -> None:
    finding = search(World(settings=NO_RETRY, until_ms=20, may_fail=True, may_accept=True, of_each=1))
    assert not finding.broken, told(finding)


def offer_only_what_was_cut(before: Ledger, after: Ledger) -> list[OpenSlice]:
    """Cut, then publish, and never look again: a death in between loses the slice."""
    known = {each.slice_id for each in before.open}
    return [each for each in offers_due(after, LATE) if each.slice_id not in known]


def complete_without_fence(
    ledger: Ledger, slice_id: str, fence: int, now_ms: int
) -> tuple[Ledger, Completed | StaleFence]:
    held = find_open(ledger, parse_slice_id(slice_id))
    if held is None:
        return ledger, StaleFence("not open")
    return revised(ledger, open=tuple(each for each in ledger.open if each is not held)), Completed(held)


def complete_to_the_maximum(
    ledger: Ledger, slice_id: str, fence: int, now_ms: int
) -> tuple[Ledger, Completed | StaleFence]:
    after, result = complete(ledger, slice_id, fence, now_ms)
    if isinstance(result, StaleFence):
        return after, result
    return replace(after, watermark_ms=max(ledger.watermark_ms, result.slice.end_ms)), result


def cut_with_closed_bounds(ledger: Ledger, settings: FetchSettings, now_ms: int) -> Ledger:
    """Both ends belong to the slice, so that two neighbours share a millisecond."""
    after = cut(ledger, settings, now_ms)
    if after is ledger:
        return ledger
    closed = (replace(each, end_ms=each.end_ms + 1) if each not in ledger.open else each for each in after.open)
    return replace(after, open=tuple(closed))


@pytest.mark.parametrize(
    ("rules", "broken"),
    [
        (Rules(to_offer=offer_only_what_was_cut), "left undone for good"),
        (Rules(complete=complete_without_fence), "I4"),
        (Rules(complete=complete_to_the_maximum), "I3"),
        (Rules(cut=cut_with_closed_bounds), "I1"),
    ],
    ids=["cut without offering again", "no fence at complete", "watermark as maximum", "closed bounds"],
)
def test_a_known_bad_rule_is_caught(rules: Rules, broken: str) -> None:
    finding = search(World(rules=rules, settings=TWO_OPEN))
    print(told(finding))
    assert broken in finding.broken, told(finding)
    assert 1 <= len(finding.trace) <= 10, "the shortest way to the breach is short"
