"""Which sources go into one notice, when it is due, and what it says."""

from actors.fetch.outage_notices import Down, OutageGroup, due_groups, group_notice
from actors.fetch.rules.ledger import Outage
from actors.fetch.sources import SourceKey

PATIENCE_MS = 120_000
SINCE_MS = 1_000_000
DUE_MS = SINCE_MS + PATIENCE_MS


def down(name: str, since_ms: int = SINCE_MS, *, told: bool = False, over_ms: int = 0, webhook: str = "") -> Down:
    platform, _, source = name.partition("/")
    outage = Outage(since_ms, reason="HTTP 503", is_told=told, over_ms=over_ms)
    return Down(SourceKey(platform, source), outage, webhook, PATIENCE_MS)


def names(groups: list[OutageGroup]) -> list[tuple[str, list[str]]]:
    return [(group.kind, [str(source) for source, _ in group.members]) for group in groups]


def test_two_hundred_shops_that_went_down_within_a_minute_are_one_notice() -> None:
    seen = [down(f"mall/s{number}", SINCE_MS + number * 300) for number in range(200)]
    assert due_groups(seen, DUE_MS - 1) == []
    (group,) = due_groups(seen, DUE_MS)
    assert len(group.members) == 200
    notice = group_notice(group)
    assert (notice.kind, notice.source, notice.facts["sources"]) == ("source_down", "mall", 200)
    who = "200 sources (s0, s1, s2, s3, s4 and 195 more)"
    assert notice.text == f"down: {who} cannot be reached at all since 1970-01-01T00:16:40Z: HTTP 503"


def test_each_platform_and_each_address_has_its_own() -> None:
    seen = [down("mall/s1"), down("fair/s1"), down("mall/s2", webhook="env:THEIRS")]
    assert names(due_groups(seen, DUE_MS)) == [
        ("down", ["fair/s1"]),
        ("down", ["mall/s1"]),
        ("down", ["mall/s2"]),
    ]


def test_what_was_told_is_not_told_again_and_what_goes_down_later_is() -> None:
    seen = [down("mall/s1", told=True), down("mall/s2", SINCE_MS + 60_000)]
    assert due_groups(seen, DUE_MS) == []
    assert names(due_groups(seen, DUE_MS + 60_000)) == [("down", ["mall/s2"])]


def test_the_end_is_told_of_all_at_once_or_of_those_that_are_long_back() -> None:
    back = [down("mall/s1", told=True, over_ms=DUE_MS), down("mall/s2", told=True, over_ms=DUE_MS + 5_000)]
    assert names(due_groups(back, DUE_MS + 5_000)) == [("up", ["mall/s1", "mall/s2"])]
    still = [*back, down("mall/s3", told=True)]
    assert due_groups(still, DUE_MS + PATIENCE_MS - 1) == []
    assert names(due_groups(still, DUE_MS + PATIENCE_MS)) == [("up", ["mall/s1", "mall/s2"])]


def test_the_end_says_how_long_it_was() -> None:
    (group,) = due_groups([down("mall/s1", told=True, over_ms=SINCE_MS + 3_780_000)], 10**10)
    notice = group_notice(group)
    assert (notice.kind, notice.source) == ("source_up", "mall/s1")
    assert "can again after 1h3m" in notice.text
    assert notice.facts == {"sources": 1, "since_ms": SINCE_MS, "over_ms": SINCE_MS + 3_780_000}
