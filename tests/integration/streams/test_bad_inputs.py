"""Bad subjects, keys, headers and payloads: each refused with its own error, before it can hurt the link.

The numbers are those of the catalogue of bad inputs. After each the same connection still stores a message: several of
these, sent as they are, have the server close the link and the client give up for good.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from streams.errors import MalformedHeader, MalformedSubject, StreamError, TooLarge
from streams.link.connection import Connection
from streams.publish.publisher import Outgoing, Publisher, Receipt
from streams.subjects import token_of
from tests.support.server import add_stream, stream_state


class Bad(NamedTuple):
    """What is published, with `{n}` for the namespace, and the error that it must meet."""

    error: type[StreamError]
    subject: str = "{n}.events.a"
    headers: Mapping[str, str] | None = None
    message_id: str | None = None
    payload: bytes = b""


CASES = {
    "1 blank": Bad(MalformedSubject, "{n}.events.a b"),
    "2 tab": Bad(MalformedSubject, "{n}.events.a\tb"),
    "3 line end and a command": Bad(MalformedSubject, "{n}.events.a\r\nPUB x 0\r\n\r\n"),
    "4 empty token": Bad(MalformedSubject, "{n}.events..a"),
    "5 leading dot": Bad(MalformedSubject, ".{n}.events.a"),
    "6 trailing dot": Bad(MalformedSubject, "{n}.events.a."),
    "7 star": Bad(MalformedSubject, "{n}.events.*"),
    "8 full wildcard": Bad(MalformedSubject, "{n}.events.>"),
    "9 a subject of 5,000": Bad(MalformedSubject, "{n}.events." + "a" * 5000),
    "9 a subject of 513": Bad(MalformedSubject, ("{n}.events." + "a" * 513)[:526]),
    "10 a key of 4,200": Bad(MalformedSubject, "$KV.B." + "k" * 4200),
    "11 not ASCII": Bad(MalformedSubject, "{n}.events.bestellung-ü"),
    "11 right to left": Bad(MalformedSubject, "{n}.events.\u202eabc"),
    "11 zero width": Bad(MalformedSubject, "{n}.events.a\u200bb"),
    "12 NUL": Bad(MalformedSubject, "{n}.events.a\0b"),
    "12 delete": Bad(MalformedSubject, "{n}.events.a\x7fb"),
    "15 parent folder": Bad(MalformedSubject, "{n}.events.../x"),
    "empty subject": Bad(MalformedSubject, ""),
    "16 line end in a header value": Bad(MalformedHeader, headers={"A": "b\r\nNats-TTL: 1s"}),
    "16 line feed in a message id": Bad(MalformedHeader, message_id="a\nb"),
    "16 NUL in a header value": Bad(MalformedHeader, headers={"A": "b\0"}),
    "17 line end in a header name": Bad(MalformedHeader, headers={"A\r\nB": "c"}),
    "17 colon in a header name": Bad(MalformedHeader, headers={"A:B": "c"}),
    "18 empty header name": Bad(MalformedHeader, headers={"": "c"}),
    "18 blank header name": Bad(MalformedHeader, headers={" ": "c"}),
    "19 header value that is not ASCII": Bad(MalformedHeader, headers={"A": "größe"}),
    "19 header value that would be trimmed": Bad(MalformedHeader, headers={"A": " b"}),
    "20 headers of 70 KB": Bad(MalformedHeader, headers={"A": "b" * 70_000}),
    "20 many small headers": Bad(MalformedHeader, headers={f"A{n}": "b" * 40 for n in range(100)}),
    "20 a message id of 5,000": Bad(MalformedHeader, message_id="a" * 5000),
    "21 the same header twice": Bad(MalformedHeader, headers={"A": "b", "a": "c"}),
    "21 a message id as header": Bad(MalformedHeader, headers={"nats-msg-id": "c"}),
    "21 an empty message id": Bad(MalformedHeader, message_id=""),
    "24 one byte too much": Bad(TooLarge, payload=bytes(1_048_577)),
    "24 too much with its headers": Bad(TooLarge, payload=bytes(1_048_576), message_id="one"),
}


@pytest.mark.parametrize("bad", CASES.values(), ids=CASES.keys())
async def test_bad_input_is_refused_and_the_connection_lives_on(
    connection: Connection, publisher: Publisher, bad: Bad
) -> None:
    stream = await add_stream(connection, "EVENTS")
    subject = bad.subject.replace("{n}", connection.namespace.name)
    link = connection.client.client_id
    with pytest.raises(bad.error) as refused:
        await publisher.publish(subject, bad.payload, message_id=bad.message_id, headers=bad.headers, timeout_s=5)
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()
    if bad.message_id is None and "nats-msg-id" not in (bad.headers or {}):
        with pytest.raises(bad.error):
            await connection.request(subject, bad.payload, headers=bad.headers)
        with pytest.raises(bad.error):
            await connection.publish_core(subject, bad.payload, headers=bad.headers)

    good = connection.namespace.subject("events", "good")
    assert await publisher.publish(good, b"1", message_id="good") == Receipt(stream, 1, False)
    assert (connection.client.client_id, connection.is_connected) == (link, True)


@pytest.mark.parametrize("pattern", ["a b", "a..b", "", ">.a", "a\r\nSUB b 1", "ü", "a" * 5000])
async def test_a_bad_pattern_is_refused_and_the_connection_lives_on(connection: Connection, pattern: str) -> None:
    with pytest.raises(MalformedSubject):
        await connection.subscribe(pattern, print)
    await connection.flush()


async def test_odd_ids_are_stored_under_tokens_of_their_own(connection: Connection, publisher: Publisher) -> None:
    """15: what is no token becomes one, and no two become the same."""
    stream = await add_stream(connection, "ORDERS")
    odd = [
        "../x",
        "/",
        "%2e",
        "%2E",
        ".",
        "..",
        "",
        " ",
        "a b",
        "ü",
        "a\0b",
        "a" * 5000,
        "a" * 5001,
        "$JS.API.>",
        "h_x",
    ]
    subjects = [connection.namespace.subject("orders", token_of(text)) for text in odd]
    await publisher.publish_many([Outgoing(subject, b"") for subject in subjects])
    info = await connection.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
    assert info["state"]["num_subjects"] == len(odd)


async def test_what_is_odd_but_sound_is_stored_as_it_is(connection: Connection, publisher: Publisher) -> None:
    stream = await add_stream(connection, "EVENTS")
    good: dict[str, Callable[[str], Outgoing]] = {
        "24 exactly the most": lambda subject: Outgoing(subject, bytes(connection.max_payload)),
        "25 empty payload": lambda subject: Outgoing(subject, b""),
        "a subject of 512": lambda subject: Outgoing(subject + "a" * (512 - len(subject)), b""),
        "headers of nearly 4 KiB": lambda subject: Outgoing(subject, b"", "id", {"A": "b" * 4000}),
        "a header with an empty value": lambda subject: Outgoing(subject, b"", None, {"A": ""}),
        "protocol as payload": lambda subject: Outgoing(subject, b"\r\nPUB x 0\r\n\r\n"),
    }
    messages = [make(connection.namespace.subject("events", f"{at}")) for at, make in enumerate(good.values())]
    outcomes = await publisher.publish_many(messages)
    assert [type(outcome) for outcome in outcomes] == [Receipt] * len(good)
    assert (await stream_state(connection, stream))["messages"] == len(good)
