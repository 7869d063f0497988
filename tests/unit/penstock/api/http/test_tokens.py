"""Tokens: long, hashed, and refused in words when they cannot be."""

import pytest

from penstock.api.http.tokens import BadToken, TokenRecord, TokenWish, check_wish, hash_of, token_id

TEXT = "pst_0123456789_" + "a" * 43


def record(**changes: object) -> TokenRecord:
    return TokenRecord(
        **{"name": "n", "id": "0123456789", "sha256": hash_of(TEXT), "topics": ("*",), "verbs": ("add",), **changes}  # type: ignore[arg-type]
    )


def test_only_the_whole_token_fits() -> None:
    assert record().fits(TEXT)
    assert not record().fits(TEXT[:-1] + "b")
    assert not record().fits(TEXT + "\n")
    assert not record().fits("")


@pytest.mark.parametrize(
    ("text", "expected"),
    [(TEXT, "0123456789"), (TEXT + "\n", None), (TEXT[:-1], None), ("pst__", None), ("", None), ("\ud800", None)],
)
def test_a_tokens_text_has_one_form(text: str, expected: str | None) -> None:
    assert token_id(text) == expected


@pytest.mark.parametrize(
    ("changes", "is_live"),
    [({}, True), ({"expires_ms": 1000}, False), ({"expires_ms": 1001}, True), ({"revoked_ms": 5}, False)],
)
def test_a_token_lives_until_it_expires_or_is_revoked(changes: dict[str, int], is_live: bool) -> None:
    assert record(**changes).is_live(1000) is is_live


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "a b"}, "name 'a b': use 1 to 64"),
        ({"name": ""}, "name ''"),
        ({"topics": ()}, "topics: 0 of them"),
        ({"topics": ("a*b",)}, "topics: 'a*b' is neither"),
        ({"topics": ("",)}, "topics: ''"),
        ({"topics": ("a.b",)}, "topics: 'a.b'"),
        ({"verbs": ()}, "verbs: none; choose among add, reserve"),
        ({"verbs": ("fly",)}, "verbs: fly"),
        ({"namespace": "a--b"}, "namespace 'a--b'"),
        ({"namespace": "a-"}, "namespace 'a-'"),
        ({"namespace": "x" * 25}, "up to 24"),
        ({"rate": -1.0}, "rate -1.0"),
        ({"rate": float("nan")}, "rate nan"),
        ({"most_waiting": -1}, "most_waiting -1"),
        ({"expires_ms": 1000}, "expires: is over already"),
    ],
)
def test_what_makes_no_token_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadToken) as refused:
        check_wish(TokenWish(**{"name": "n", **changes}), now_ms=1000)  # type: ignore[arg-type]
    assert said in str(refused.value)
