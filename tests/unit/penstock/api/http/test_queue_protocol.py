"""Bodies of the original protocol: JSON text in, the same text out, and JSON for everybody else."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.api.http.routes.queue_protocol import unwrapped, wrapped


@given(some.text() | some.recursive(some.none() | some.integers() | some.text(), some.lists).map(
    lambda value: msgspec.json.encode(value).decode()
))  # fmt: skip
def test_any_text_comes_back_to_the_letter(text: str) -> None:
    encoded = msgspec.json.encode(text)
    assert wrapped(bytes(unwrapped(encoded))) == text


@pytest.mark.parametrize(
    ("sent", "stored", "value"),
    [
        (b'"{\\"a\\": 1}"', b'{"a": 1}', '{"a": 1}'),
        (b'"[1]"', b"[1]", "[1]"),
        (b'"hello"', b'"hello"', "hello"),
        (b'"5"', b'"5"', "5"),
        (b'"{broken"', b'"{broken"', "{broken"),
        (b'"{broken}"', b'"{broken}"', "{broken}"),
        (b'{"a": 1}', b'{"a": 1}', '{"a": 1}'),
        (b"5", b"5", "5"),
    ],
)
def test_json_in_a_string_is_stored_as_json(sent: bytes, stored: bytes, value: str) -> None:
    assert bytes(unwrapped(sent)) == stored
    assert wrapped(stored) == value
