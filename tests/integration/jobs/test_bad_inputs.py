"""Bad input at the job service: each with its own clear answer, and after each the node lives and the link stands.

The numbers are those of the catalogue of bad inputs. Subjects, headers and frames that the client itself refuses are in
tests/integration/streams/test_bad_inputs.py; what is published raw, in test_submissions.py; reply subjects, in
test_micro.py; receipts that are no more, in test_job_desk_settling.py.
"""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from streams.errors import TooLarge
from streams.link.connection import Connection
from streams.messages.jobs import LARGEST_BODY
from tests.support.desks import TOPIC, Office, open_office, open_service
from tests.support.moments import a_moment

CANARY = "canary-7f3a"
RECEIPT = f"mail.a.1.1700000000000.{'0' * 12}"


class Bad(NamedTuple):
    """What is asked, as JSON or as bytes, and how it must be answered. An empty `field`: any."""

    asked: Any
    field: str = ""
    endpoint: str = "add"
    number: int = 400
    code: str = "bad"


def job(**fields: object) -> dict[str, object]:
    return {"topic": TOPIC, "body": CANARY, **fields}


def raw(fields: str) -> bytes:
    return f'{{"topic": "mail", {fields}}}'.encode()


ROWS: dict[str, Bad] = {
    "1 a blank": Bad(job(topic="a b"), "topic"),
    "2 a tab": Bad(job(topic="a\tb"), "topic"),
    "3 a line end and a command": Bad(job(topic="a\r\nPUB x 0\r\n\r\n"), "topic"),
    "4 an empty token": Bad(job(topic="a..b"), "topic"),
    "4 an empty topic": Bad(job(topic=""), "topic"),
    "5 a dot in front": Bad(job(topic=".a"), "topic"),
    "6 a dot behind": Bad(job(topic="a."), "topic"),
    "7 a star": Bad(job(topic="*"), "topic"),
    "8 a full wildcard": Bad(job(topic=">"), "topic"),
    "9 a topic of 5,000": Bad(job(topic="a" * 5000), "topic"),
    "9 a topic of 65": Bad(job(topic="a" * 65), "topic"),
    "10 an id of 4,200": Bad(job(id="k" * 4200), "id"),
    "11 a topic that is not ASCII": Bad(job(topic="größe"), "topic"),
    "11 a topic from right to left": Bad(job(topic="\u202eabc"), "topic"),
    "11 an id from right to left": Bad(job(id="\u202eabc"), "id"),
    "11 an id of no width": Bad(job(id="a\u200bb"), "id"),
    "12 NUL in a topic": Bad(job(topic="a\0"), "topic"),
    "12 NUL in an id": Bad(job(id="a\0"), "id"),
    "13 the server's own subjects": Bad(job(topic="$JS.API.>"), "topic"),
    "13 a bucket's": Bad(job(topic="$KV."), "topic"),
    "14 an inbox": Bad(job(topic="_INBOX.x"), "topic"),
    "15 a parent folder": Bad(job(topic="../x"), "topic"),
    "15 a slash, encoded": Bad(job(topic="%2e%2e"), "topic"),
    "24 a body beyond the limit": Bad(job(body="x" * LARGEST_BODY), "body"),
    "25 nothing": Bad(b""),
    "25 nothing but blanks": Bad(b"  \r\n"),
    "26 an unknown field": Bad(job(delay=5)),
    "26 another version": Bad(job(version=2)),
    "27 cut short": Bad(b'{"topic": "mail", "bo'),
    "27 not JSON but msgpack": Bad(b"\x81\xa5topic\xa4mail"),
    "28 500 deep": Bad(raw(f'"body": {"[" * 500}{"]" * 500}'), "body"),
    "28 100,000 deep": Bad(raw(f'"body": {"[" * 100_000}{"]" * 100_000}')),
    "28 100,000 objects deep": Bad(raw('"body": ' + '{"a":' * 100_000)),
    "29 a body of NaN": Bad(raw('"body": NaN')),
    "29 a delay of NaN": Bad(raw('"delay_ms": NaN')),
    "29 a delay of Infinity": Bad(raw('"delay_ms": Infinity')),
    "29 a delay of 1e400": Bad(raw('"delay_ms": 1e400')),
    "30 a delay beyond 63 bits": Bad(raw('"delay_ms": 9223372036854775808'), "delay_ms"),
    "30 a delay of a thousand digits": Bad(raw(f'"delay_ms": {"9" * 1000}')),
    "30 a due time beyond 63 bits": Bad(raw('"due_ms": 9223372036854775808'), "due_ms"),
    "32 half a surrogate": Bad(raw('"id": "\\ud800"')),
    "32 half a surrogate in a body": Bad(raw('"body": "\\udfff"')),
    "32 no UTF-8": Bad(b'{"topic": "mail", "body": "\xff\xfe"}'),
    "33 a byte order mark": Bad(b'\xef\xbb\xbf{"topic": "mail"}'),
    "34 a forged receipt": Bad({"receipt": RECEIPT}, "", "finish", 409, "stale"),
    "34 a receipt of wildcards": Bad({"receipt": f"*.>.1.1.{'0' * 12}"}, "", "finish"),
    "34 a receipt of another's subject": Bad({"receipt": "$JS.ACK.S.c.1.1.1.1.1"}, "", "release"),
    "36 due too far ahead": Bad(job(due_ms=10**14), "due_ms"),
    "36 due before there was time": Bad(job(due_ms=-1), "due_ms"),
    "36 over before it is due": Bad(job(delay_ms=5000, expires_in_ms=4000), "expires_in_ms"),
    "47 a delay of -1": Bad(job(delay_ms=-1), "delay_ms"),
    "48 a delay of 1e18": Bad(raw('"delay_ms": 1e18')),
    "48 a delay of 10**18": Bad(job(delay_ms=10**18), "delay_ms"),
    "48 a delay in quotes": Bad(job(delay_ms="30")),
    "48 a delay of true": Bad(job(delay_ms=True)),
    "48 a delay of a half": Bad(job(delay_ms=0.5)),
    "48 a delay and a due time": Bad(job(delay_ms=5, due_ms=10**12), "due_ms"),
    "49 a TTR of 0": Bad(job(ttr_ms=0), "ttr_ms"),
    "49 a TTR of 0 at the reserve": Bad({"topic": TOPIC, "ttr_ms": 0}, "ttr_ms", "reserve"),
    "50 a TTR of ten years": Bad(job(ttr_ms=315_360_000_000), "ttr_ms"),
    "50 a TTR of ten years by a touch": Bad({"receipt": RECEIPT, "ttr_ms": 315_360_000_000}, "ttr_ms", "touch"),
    "53 an id of 256": Bad(job(id="a" * 256), "id"),
    "53 an id that is a number": Bad(job(id=7)),
    "53 an empty id to be deleted": Bad({"id": ""}, "id", "delete"),
    "55 a receipt that is none": Bad({"receipt": "mine"}, "", "finish"),
    "56 a touch of what is not held": Bad({"receipt": RECEIPT}, "", "touch", 409, "stale"),
    "58 a wait of 1e9": Bad({"topic": TOPIC, "wait_ms": 10**9}, "wait_ms", "reserve"),
    "58 a wait of -1": Bad({"topic": TOPIC, "wait_ms": -1}, "wait_ms", "reserve"),
    "60 delete an unknown id": Bad({"id": "unheard"}, "", "delete", 404, "not_found"),
    "60 peek at an unknown id": Bad({"topic": TOPIC, "id": "unheard"}, "", "peek", 404, "not_found"),
    "60 finish an unknown id": Bad({"id": "unheard"}, "", "finish", 404, "not_found"),
    "67 a list of 10**9": Bad({"topic": TOPIC, "limit": 10**9}, "limit", "list"),
    "67 a list of none": Bad({"topic": TOPIC, "limit": 0}, "limit", "list"),
    "68 a changed cursor": Bad({"topic": TOPIC, "after": "0.1.000000000000"}, "after", "list"),
    "68 a cursor of 5,000": Bad({"topic": TOPIC, "after": "9" * 5000}, "after", "list"),
    "69 a list of 1,001": Bad([job()] * 1001),
    "69 1,001 receipts": Bad({"receipts": [RECEIPT] * 1001}, "", "finish"),
    "both of receipt and receipts": Bad({"receipt": RECEIPT, "receipts": [RECEIPT]}, "", "release"),
    "neither receipt nor receipts": Bad({}, "", "bury"),
    "reserve none": Bad({"topic": TOPIC, "most": 0}, "most", "reserve"),
    "reserve 1,001": Bad({"topic": TOPIC, "most": 1001}, "most", "reserve"),
    "a holder on two lines": Bad({"topic": TOPIC, "holder": "a\nb"}, "holder", "reserve"),
    "a release into the past": Bad({"receipt": RECEIPT, "delay_ms": -1}, "delay_ms", "release"),
    "kick 10**9": Bad({"topic": TOPIC, "most": 10**9}, "most", "kick"),
    "count a number": Bad({"topic": 7}, "", "count"),
    "an unknown state": Bad({"topic": TOPIC, "state": "lost"}, "", "list"),
    "due bounds beyond all": Bad({"topic": TOPIC, "due_after_ms": 10**30}, "due_after_ms", "list"),
    "an unknown priority": Bad(job(priority="urgent")),
    "an unknown policy": Bad(job(on_same="merge")),
    "no attempts": Bad(job(attempts=0), "attempts"),
    "attempts without end": Bad(job(attempts=10**9), "attempts"),
    "two ends": Bad(job(expires_ms=10**13, expires_in_ms=5), "expires_ms"),
    "the name of what is set for all": Bad(job(topic="default"), "topic"),
    "an unknown setting": Bad({"topic": TOPIC, "set": {"tttr": "9s"}}, "tttr", "topic"),
    "a setting without unit": Bad({"topic": TOPIC, "set": {"ttr": "9"}}, "ttr", "topic"),
    "a rate below nothing": Bad({"topic": TOPIC, "set": {"rate": -1}}, "rate", "topic"),
    "a request of another type": Bad(b"7", "", "count"),
    "a request that is null": Bad(b"null", "", "reserve"),
    "topics with something": Bad({"all": True}, "", "topics"),
}


@pytest.fixture
async def office(connection: Connection) -> AsyncIterator[Office]:
    async with open_office(connection) as opened, open_service(opened):
        yield opened


async def answer_to(office: Office, endpoint: str, asked: object) -> tuple[int, Any]:
    payload = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    answer = await office.connection.request(office.namespace.api("jobs", endpoint), payload, timeout_s=30)
    return int(answer.headers.get("Nats-Service-Error-Code", "0")), json.loads(answer.payload)


@pytest.mark.parametrize("bad", ROWS.values(), ids=ROWS.keys())
async def test_it_is_refused_with_a_reason_and_the_node_lives_on(
    office: Office, caplog: pytest.LogCaptureFixture, bad: Bad
) -> None:
    caplog.set_level(logging.DEBUG)
    link = office.connection.client.client_id
    number, told = await answer_to(office, bad.endpoint, bad.asked)
    error = told["error"]
    assert (number, error["code"]) == (bad.number, bad.code), told
    if bad.field:
        assert error["field"] == bad.field
    assert 0 < len(error["reason"]) < 500
    assert error["reason"].isprintable()
    number, added = await answer_to(office, "add", job(id="good"))
    assert (number, added["state"]) == (0, "ready")
    number, counts = await answer_to(office, "count", {"topic": TOPIC})
    assert (number, counts["ready"]) == (0, 1)
    assert office.connection.is_connected
    assert office.connection.client.client_id == link
    assert CANARY not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


GOOD: dict[str, dict[str, object]] = {
    "15 an id like a path": job(id="../x/%2e?y"),
    "53 no id": job(),
    "53 an empty id": job(id=""),
    "53 an id of a dot": job(id="."),
    "53 an id of 255": job(id="ü" * 255),
    "13 an id like the server's subjects": job(id="$JS.API.>"),
    "7 an id of a star": job(id="*"),
    "10 an id like a hashed one": job(id="h_abc"),
    "28 128 deep": job(body=json.loads("[" * 128 + "]" * 128)),
    "24 a body of exactly the limit": job(body="x" * (LARGEST_BODY - 2)),
    "36 due in 2020": job(due_ms=1_577_836_800_000),
    "50 a TTR of a week": job(ttr_ms=604_800_000),
    "48 a delay of ten years": job(delay_ms=315_360_000_000),
    "a body of nothing": {"topic": TOPIC},
}


async def test_what_is_odd_but_sound_is_added_and_found_again(office: Office) -> None:
    for name, asked in GOOD.items():
        number, added = await answer_to(office, "add", asked)
        assert (number, added["code"], added["is_new"]) == (0, "ok", True), name
        number, shown = await answer_to(office, "peek", {"topic": TOPIC, "id": added["id"]})
        assert (number, shown["id"], shown["body"]) == (0, asked.get("id") or added["id"], asked.get("body")), name
        number, _ = await answer_to(office, "delete", {"id": added["id"]})
        assert number == 0, name


async def test_of_a_field_given_twice_the_last_one_counts(office: Office) -> None:
    """31."""
    number, added = await answer_to(office, "add", b'{"topic": "a b", "id": "x", "topic": "mail", "id": "y"}')
    assert (number, added["topic"], added["id"]) == (0, TOPIC, "y")


async def test_a_number_that_is_too_large_for_most_travels_as_it_came(office: Office) -> None:
    """29: a body is carried, not understood."""
    await answer_to(office, "add", raw('"id": "a", "body": 1e400'))
    reserved = await office.connection.request(office.namespace.api("jobs", "reserve"), b'{"topic": "mail"}')
    assert b'"body":1e400' in reserved.payload


@pytest.mark.parametrize(
    "block",
    [
        b"Nats-TTL: 1s\r\nNats-Rollup: all\r\nNats-Schedule: @at tomorrow\r\nNats-Expected-Last-Sequence: 9\r\n",
        b"Nats-Msg-Id: a\r\nnats-msg-id: b\r\n",
        "Größe: ä\r\n".encode(),
        b"\xff\xfe: \xff\r\n",
        b": nothing\r\nno colon\r\n\r\n\r\n",
        b"Large: " + b"x" * 70_000 + b"\r\n",
    ],
    ids=["22 forged", "21 doubled", "19 not ASCII", "19 no UTF-8", "18 no name", "20 70 KB"],
)
async def test_headers_change_nothing(office: Office, block: bytes) -> None:
    payload, heads = json.dumps(job(id="a")).encode(), b"NATS/1.0\r\n" + block + b"\r\n"
    to = office.namespace.api("jobs", "add")
    office.connection.client.send(
        f"HPUB {to} _INBOX.nobody.x {len(heads)} {len(heads) + len(payload)}\r\n".encode() + heads + payload + b"\r\n"
    )
    link = office.connection.client.client_id
    while await office.state("a") is None:
        await a_moment()
    assert await office.state("a") == "ready"
    assert office.connection.client.client_id == link


async def test_a_message_of_exactly_the_most_and_one_byte_more(office: Office) -> None:
    """24: what the server takes is refused by us; what it does not take never leaves."""
    most = office.connection.max_payload
    number, told = await answer_to(office, "add", raw('"body": "').removesuffix(b"}").ljust(most, b"x"))
    assert (number, told["error"]["code"]) == (400, "bad")
    with pytest.raises(TooLarge):
        await answer_to(office, "add", bytes(most + 1))
    number, told = await answer_to(office, "add", [job(id="large", body="x" * 300_000), job(id="good")])
    assert [answer["code"] for answer in told["answers"]] == ["bad", "ok"]
    assert office.connection.is_connected
