"""Dead letters by command, on a real server: paged, shown, sent again past the server's memory, dropped."""

import msgspec
import pytest

from actors.fetch.monitor import hole_dead_letter
from actors.fetch.rules.ledger import Hole, Ledger, revised
from actors.fetch.sources import SourceKey
from streams.messages.fetch import DeadLetter, Order, Try, dead_body, decode_orders, encode
from streams.messages.ids import order_message_id
from streams.reads.log import extent_of, read_log
from tests.support.cli import CommandLine

SHOP = SourceKey("mall", "s1")


def order(key: str) -> Order:
    body = msgspec.Raw(b'{"total":7}')
    return Order(platform="mall", source="s1", order_key=key, version=3, modified_ms=1, fetched_ms=2, body=body)


def sink_letter(dead_id: str, payload: bytes, *, reason: str = "constraint") -> DeadLetter:
    body, is_base64 = dead_body(payload)
    return DeadLetter(
        engine="sink",
        name="main",
        id=dead_id,
        reason=reason,
        attempts=2,
        first_ms=1,
        body=body,
        is_base64=is_base64,
        history=(Try(attempt=1, at_ms=1, node="n1", reason="locked"),),
    )


async def bury(cli: CommandLine, letter: DeadLetter) -> int:
    subject = cli.records.namespace.dead(letter.engine, letter.name, letter.id)
    return (await cli.records.publisher.publish(subject, encode(letter))).seq


async def left(cli: CommandLine) -> int:
    return (await extent_of(cli.records.connection, cli.records.namespace.stream("DEAD"))).messages


async def orders(cli: CommandLine) -> list[str]:
    stream, subject = cli.records.namespace.stream("ORDERS"), cli.records.namespace.orders("mall", "s1")
    entries = [entry async for entry in read_log(cli.records.connection, stream, subject)]
    return [each.order_key for entry in entries for each in decode_orders(entry.payload)]


async def test_letters_come_a_page_at_a_time_and_by_name(cli: CommandLine) -> None:
    seqs = [await bury(cli, sink_letter(str(at), encode(order(f"o{at}")))) for at in range(5)]
    await bury(cli, hole_dead_letter(SHOP, Hole("t", 1, 0, 1000, reason="HTTP 500")))
    page = (await cli("dead", "list", "--limit", "2", "--json")).ok().json()
    assert ([one["seq"] for one in page["letters"]], page["next_after"]) == (seqs[:2], seqs[1])
    rest = (await cli("dead", "list", "--after", str(seqs[1]), "--json")).ok().json()
    assert (len(rest["letters"]), rest["next_after"]) == (4, None)
    holes = (await cli("dead", "list", "--engine", "fetch", "--name", "mall", "--json")).ok().json()["letters"]
    assert [(one["engine"], one["name"], one["reason"]) for one in holes] == [("fetch", "mall", "HTTP 500")]
    assert "--after" in (await cli("dead", "list", "--limit", "2")).ok().out
    assert (await cli("dead", "list", "--engine", "a.b")).code == 2


async def test_a_letter_is_shown_by_sequence_and_by_id_with_what_sending_it_would_do(cli: CommandLine) -> None:
    seq = await bury(cli, sink_letter("314-o1", encode(order("o1"))))
    shown = (await cli("dead", "show", "314-o1", "--json")).ok().json()
    assert (shown["seq"], shown["attempts"], shown["history"][0]["reason"]) == (seq, 2, "locked")
    assert msgspec.json.decode(shown["body"])["order_key"] == "o1"
    for_people = (await cli("dead", "show", str(seq))).ok().out
    assert "sends order o1 of mall/s1 to the sinks again" in for_people
    for which in ("99", "nobody", "a.b"):
        assert (await cli("dead", "show", which)).code == 2


async def test_a_replayed_order_is_stored_again_though_the_server_remembers_it(cli: CommandLine) -> None:
    first = order("o1")
    subject = cli.records.namespace.orders("mall", "s1")
    await cli.records.publisher.publish(subject, encode(first), message_id=order_message_id(first))
    seq = await bury(cli, sink_letter("1", encode(first)))
    told = (await cli("dead", "replay", str(seq), "--json")).ok().json()
    assert (told["replayed"], told["kept"]) == (1, [])
    assert await orders(cli) == ["o1", "o1"]
    assert await left(cli) == 0
    assert (await cli("dead", "replay", str(seq))).code == 2


async def test_an_order_too_large_for_its_letter_is_taken_from_the_stream_of_orders(cli: CommandLine) -> None:
    stored = await cli.records.publisher.publish(cli.records.namespace.orders("mall", "s1"), encode(order("o1")))
    reason = f"too large to carry: the body is message {stored.seq} of the stream of orders"
    seq = await bury(cli, sink_letter("1", b"null", reason=reason))
    lost = await bury(cli, sink_letter("2", b"null", reason=reason.replace(f"message {stored.seq}", "message 99")))
    (await cli("dead", "replay", str(seq))).ok()
    assert await orders(cli) == ["o1", "o1"]
    kept = await cli("dead", "replay", str(lost))
    assert (kept.code, "backfill" in kept.err, await left(cli)) == (1, True, 1)


async def test_a_replayed_hole_is_read_again(cli: CommandLine) -> None:
    hole = Hole("t", 1, 0, 60_000, attempts=6, reason="HTTP 500")
    await cli.records.create_ledger(SHOP, revised(Ledger(0, 60_000, 0), holes=(hole,)))
    seq = await bury(cli, hole_dead_letter(SHOP, hole))
    (await cli("dead", "replay", str(seq))).ok()
    ledger = await cli.records.ledger(SHOP)
    assert ledger is not None
    assert [held.slice_id for held in ledger.open] == [hole.slice_id]
    assert await left(cli) == 0


async def test_of_all_letters_those_that_cannot_be_sent_stay_and_say_why(cli: CommandLine) -> None:
    hole = Hole("t", 1, 0, 60_000, reason="HTTP 500")
    await cli.records.create_ledger(SHOP, Ledger(0, 60_000, 60_000))
    await bury(cli, sink_letter("1", encode(order("o1"))))
    await bury(cli, sink_letter("2", b"\xff\xfe"))
    await bury(cli, hole_dead_letter(SHOP, hole))
    await bury(cli, hole_dead_letter(SourceKey("mall", "gone"), hole))
    await cli.records.publisher.publish(cli.records.namespace.dead("sink", "main", "x"), b"no letter")
    told = await cli("dead", "replay", "--all", "--json")
    assert told.code == 1
    document = told.json()
    assert document["replayed"] == 2
    assert [one["id"] for one in document["kept"]] == ["2", "gone_t1-0-60000", "x"]
    assert await left(cli) == 3


async def test_letters_are_dropped_only_with_a_yes_and_only_those_named(cli: CommandLine) -> None:
    seqs = [await bury(cli, sink_letter(str(at), b"{}")) for at in range(4)]
    await bury(cli, hole_dead_letter(SHOP, Hole("t", 1, 0, 1000)))
    unsure = await cli("dead", "drop", str(seqs[0]))
    assert (unsure.code, await left(cli)) == (2, 5)
    (await cli("dead", "drop", str(seqs[0]), str(seqs[1]), "--yes")).ok()
    assert await left(cli) == 3
    dropped = (await cli("dead", "drop", "--all", "--engine", "sink", "--yes", "--json")).ok().json()
    assert (dropped, await left(cli)) == ({"dropped": 2, "gone": 0, "in_doubt": 0}, 1)


async def test_a_number_that_is_no_sequence_never_drops_a_letter_of_that_id(cli: CommandLine) -> None:
    await bury(cli, sink_letter("77", b"{}"))
    assert (await cli("dead", "drop", "77", "--yes")).code == 2
    assert await left(cli) == 1


@pytest.mark.parametrize("verb", ["replay", "drop"])
async def test_letters_have_to_be_named_or_all_of_them_meant(cli: CommandLine, verb: str) -> None:
    for arguments in ((), ("1", "--all")):
        told = await cli("dead", verb, *arguments)
        assert (told.code, "--all" in told.err) == (2, True)
