"""Which holes go into one notice, when it is due, and what it says."""

from msgspec.structs import replace

from actors.fetch.hole_notices import TOGETHER_MS, GivenUp, HoleGroup, due_holes, holes_notice
from actors.fetch.rules.ledger import Hole, Shortfall
from actors.fetch.sources import SourceKey

SINCE_MS = 1_000_000
DUE_MS = SINCE_MS + TOGETHER_MS


def hole(number: int, since_ms: int = SINCE_MS, short: Shortfall | None = None) -> Hole:
    start_ms = number * 1_000
    return Hole("t", 1, start_ms, start_ms + 1_000, since_ms=since_ms, attempts=6, reason="HTTP 404", short=short)


def given_up(name: str, number: int = 0, since_ms: int = SINCE_MS, webhook: str = "") -> GivenUp:
    platform, _, source = name.partition("/")
    return GivenUp(SourceKey(platform, source), hole(number, since_ms), webhook)


def names(groups: list[HoleGroup]) -> list[list[str]]:
    return [[f"{source}:{hole.start_ms // 1000}" for source, hole in group.members] for group in groups]


def test_the_holes_of_a_platform_within_a_minute_are_one_notice() -> None:
    seen = [given_up(f"mall/s{number % 7}", number, SINCE_MS + number * 300) for number in range(200)]
    assert due_holes(seen, DUE_MS - 1) == []
    (group,) = due_holes(seen, DUE_MS)
    assert len(group.members) == 200
    notice = holes_notice(group)
    assert (notice.kind, notice.source) == ("hole", "mall")
    assert notice.facts == {"holes": 200, "sources": 7, "since_ms": SINCE_MS}
    assert notice.text == (
        "200 windows of 7 sources (s0, s1, s2, s3, s4 and 2 more) are holes; "
        "the first, of mall/s0: t1-0-1000 was given up after 6 attempts: HTTP 404"
    )
    assert notice.what_to_do == "penstock holes list, then redrive or accept them"


def test_the_holes_of_one_source_name_it() -> None:
    (group,) = due_holes([given_up("mall/s1", 1), given_up("mall/s1", 2)], DUE_MS)
    notice = holes_notice(group)
    assert (notice.source, notice.facts["holes"], notice.facts["sources"]) == ("mall/s1", 2, 1)
    assert notice.text.startswith("2 windows are holes; the first: t1-1000-2000 was given up")
    assert notice.what_to_do == "penstock holes list mall/s1, then redrive or accept them"


def test_a_hole_alone_says_what_to_do_with_it() -> None:
    (group,) = due_holes([given_up("mall/s1", 1)], DUE_MS)
    notice = holes_notice(group)
    assert (notice.source, notice.facts) == ("mall/s1", {"start_ms": 1_000, "end_ms": 2_000})
    assert notice.text == "t1-1000-2000 was given up after 6 attempts: HTTP 404"
    assert notice.what_to_do == "penstock holes redrive mall/s1 t1-1000-2000, or accept it"


def test_orders_that_are_missing_are_added_up() -> None:
    short = [GivenUp(SourceKey("mall", "s1"), hole(number, short=Shortfall(12, 52)), "") for number in (1, 2)]
    (group,) = due_holes(short, DUE_MS)
    assert holes_notice(group).facts["missing"] == 24


def test_each_platform_and_each_address_has_its_own() -> None:
    seen = [given_up("mall/s1"), given_up("fair/s1"), given_up("mall/s2", webhook="env:THEIRS")]
    assert names(due_holes(seen, DUE_MS)) == [["fair/s1:0"], ["mall/s1:0"], ["mall/s2:0"]]


def test_a_hole_of_a_node_whose_clock_is_ahead_is_told_at_once() -> None:
    ahead = given_up("mall/s1", since_ms=SINCE_MS + 3_600_000)
    assert names(due_holes([ahead], SINCE_MS)) == [["mall/s1:0"]]


def test_the_same_holes_are_the_same_notice_in_whatever_order_they_are_seen() -> None:
    seen = [given_up(f"mall/s{number}", number, SINCE_MS + number) for number in range(5)]
    assert due_holes(seen, DUE_MS) == due_holes(seen[::-1], DUE_MS)
    assert due_holes([replace(one, webhook="x") for one in seen], DUE_MS) != due_holes(seen, DUE_MS)
