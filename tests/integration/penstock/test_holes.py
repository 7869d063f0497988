"""Holes and slices by command: what is shown, read again, accepted and forgotten; on a real server."""

import msgspec
import pytest

from actors.fetch.monitor import hole_dead_letter
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, revised
from actors.fetch.sources import SourceKey
from streams.messages.fetch import HoleClosed, decode_event, encode
from streams.reads.log import extent_of, read_log
from tests.support.cli import CommandLine

SHOP = SourceKey("mall", "s1")
M = 60_000
HOLES = (
    Hole("t", 1, M, 2 * M, since_ms=5, attempts=6, reason="HTTP 500"),
    Hole("t", 1, 3 * M, 4 * M, since_ms=6, attempts=6, reason="reset"),
)
LEDGER = revised(
    Ledger(0, 9 * M, 0),
    holes=HOLES,
    open=(
        OpenSlice("t", 1, 5 * M, 6 * M, fence=4, holder="n2", taken_ms=1),
        OpenSlice("t", 1, 6 * M, 7 * M, attempt=3, not_before_ms=10**14, reason="HTTP 503"),
        OpenSlice("t", 1, 7 * M, 8 * M),
    ),
)
FIRST, SECOND = (hole.slice_id for hole in HOLES)


@pytest.fixture
async def shop(cli: CommandLine) -> CommandLine:
    """A source with two holes, each with its dead letter, and one slice in each state."""
    await cli.records.create_ledger(SHOP, LEDGER)
    for letter in (hole_dead_letter(SHOP, hole) for hole in HOLES):
        subject = cli.records.namespace.dead(letter.engine, letter.name, letter.id)
        await cli.records.publisher.publish(subject, encode(letter))
    return cli


async def ledger_of(cli: CommandLine) -> Ledger:
    ledger = await cli.records.ledger(SHOP)
    assert ledger is not None
    return ledger


async def closed_events(cli: CommandLine) -> list[tuple[str, str, bool]]:
    stream, subject = cli.records.namespace.stream("EVENTS"), cli.records.namespace.pattern("events", ">")
    events = [decode_event(entry.payload) async for entry in read_log(cli.records.connection, stream, subject)]
    return [(event.slice_id, event.by, event.is_redriven) for event in events if isinstance(event, HoleClosed)]


async def letters_left(cli: CommandLine) -> int:
    return (await extent_of(cli.records.connection, cli.records.namespace.stream("DEAD"))).messages


async def test_slices_are_shown_with_who_holds_them_or_what_they_wait_for(shop: CommandLine) -> None:
    slices = (await shop("slices", "--json")).ok().json()
    assert [(one["state"], one["attempt"]) for one in slices] == [("taken", 1), ("waiting", 3), ("open", 1)]
    assert "n2" in slices[0]["about"]
    assert "HTTP 503" in slices[1]["about"]
    taken = (await shop("slices", "mall/s1", "--state", "taken", "--json")).ok().json()
    assert [one["slice_id"] for one in taken] == [f"t1-{5 * M}-{6 * M}"]
    assert (await shop("slices", "--state", "lost")).code == 2
    assert "1970-01-01T00:05:00Z" in (await shop("slices")).ok().out


async def test_holes_are_listed_with_why(shop: CommandLine) -> None:
    holes = (await shop("holes", "list", "mall/s1", "--json")).ok().json()
    assert [(one["slice_id"], one["attempts"], one["reason"]) for one in holes] == [
        (FIRST, 6, "HTTP 500"),
        (SECOND, 6, "reset"),
    ]
    assert "HTTP 500" in (await shop("holes", "list")).ok().out


async def test_holes_and_slices_are_listed_a_page_at_a_time(shop: CommandLine) -> None:
    for what in (("holes", "list"), ("slices",)):
        whole = (await shop(*what, "--json")).ok().json()
        found, after = list[dict[str, object]](), ""
        for _ in whole:
            told = (await shop(*what, "--limit", "1", "--after", after)).ok().out
            [one] = (await shop(*what, "--limit", "1", "--after", after, "--json")).ok().json()
            after = f"{one['source']}/{one['slice_id']}"
            assert f"there may be more: --after {after}" in told
            found.append(one)
        assert found == whole
        assert (await shop(*what, "--after", after, "--json")).ok().json() == []
        wrong = await shop(*what, "--after", "mall/s1/x")
        assert (wrong.code, "PLATFORM/SOURCE/SLICE" in wrong.err) == (2, True)


async def test_a_redriven_hole_is_open_again_and_its_letter_is_gone(shop: CommandLine) -> None:
    told = (await shop("holes", "redrive", "mall/s1", FIRST, "--by", "kim", "--json")).ok().json()
    assert told["redriven"] == [FIRST]
    ledger = await ledger_of(shop)
    assert [hole.slice_id for hole in ledger.holes] == [SECOND]
    assert [held.attempt for held in ledger.open if held.slice_id == FIRST] == [1]
    assert ledger.watermark_ms == M
    assert await closed_events(shop) == [(FIRST, "kim", True)]
    assert await letters_left(shop) == 1
    assert (await shop("holes", "redrive", "mall/s1", FIRST)).code == 2


async def test_all_holes_but_the_accepted_are_redriven_in_one_go(shop: CommandLine) -> None:
    (await shop("holes", "accept", "mall/s1", FIRST, "--by", "kim")).ok()
    told = (await shop("holes", "redrive", "mall/s1", "--all", "--json")).ok().json()
    assert told["redriven"] == [SECOND]
    assert [hole.accepted_by for hole in (await ledger_of(shop)).holes] == ["kim"]
    assert (await shop("holes", "redrive", "mall/s1", "--all", "--json")).ok().json()["redriven"] == []


async def test_the_watermark_passes_an_accepted_hole_which_stays_listed(shop: CommandLine) -> None:
    told = (await shop("holes", "accept", "mall/s1", FIRST, "--by", "kim", "--json")).ok().json()
    assert told["is_new"]
    assert (await ledger_of(shop)).watermark_ms == 3 * M
    assert (await shop("holes", "accept", "mall/s1", FIRST, "--json")).ok().json()["is_new"] is False
    assert [one["accepted_by"] for one in (await shop("holes", "list", "--json")).json()] == ["kim", ""]
    assert await closed_events(shop) == [(FIRST, "kim", False)]


async def test_only_an_accepted_hole_is_forgotten_and_only_with_a_yes(shop: CommandLine) -> None:
    early = await shop("holes", "forget", "mall/s1", FIRST, "--yes")
    assert (early.code, "accept it first" in early.err) == (2, True)
    (await shop("holes", "accept", "mall/s1", FIRST)).ok()
    unsure = await shop("holes", "forget", "mall/s1", FIRST)
    assert (unsure.code, "--yes" in unsure.err) == (2, True)
    (await shop("holes", "forget", "mall/s1", FIRST, "--yes")).ok()
    assert [hole.slice_id for hole in (await ledger_of(shop)).holes] == [SECOND]
    assert await letters_left(shop) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("redrive", "mall/s1"), "--all"),
        (("redrive", "mall/s1", FIRST, "--all"), "--all"),
        (("redrive", "mall/s1", "t1-5"), "slice id"),
        (("accept", "mall/s1", "t1-0-1000"), "no hole t1-0-1000"),
        (("accept", "mall/s2", FIRST), "did you mean mall/s1"),
        (("list", "nowhere"), "PLATFORM/SOURCE"),
    ],
)
async def test_a_wrong_name_changes_nothing(shop: CommandLine, arguments: tuple[str, ...], said: str) -> None:
    told = await shop("holes", *arguments)
    assert told.code == 2
    assert said in told.err
    assert msgspec.json.encode(await ledger_of(shop)) == msgspec.json.encode(LEDGER)
