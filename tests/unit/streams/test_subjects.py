"""Names: what passes, what is refused and why, and that built names parse back."""

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.errors import MalformedSubject
from streams.subjects import (
    MAX_SUBJECT,
    TOKEN,
    Namespace,
    _base32,
    check_key,
    check_key_pattern,
    check_token,
    is_hashed,
    kv_stream,
    token_of,
)

NS = Namespace()
TOKENS = st.from_regex(TOKEN, fullmatch=True)

BAD_TOKENS = [
    pytest.param("a b", r"contains ' '", id="blank"),
    pytest.param("a\tb", r"contains '\\t'", id="tab"),
    pytest.param("x\r\nPUB y 0", r"contains '\\r'", id="line-break"),
    pytest.param("x\n", r"contains '\\n'", id="trailing-line-feed"),
    pytest.param("", "empty", id="empty"),
    pytest.param("*", r"contains '\*'", id="star"),
    pytest.param(">", "contains '>'", id="tail"),
    pytest.param("a" * 65, "65 characters", id="one-too-long"),
    pytest.param("a" * 5000, "5000 characters", id="above-the-control-line"),
    pytest.param("naïve", r"contains '\\xef'", id="non-ascii"),
    pytest.param("a\u202eb", r"contains '\\u202e'", id="right-to-left"),
    pytest.param("a\u200bb", r"contains '\\u200b'", id="zero-width"),
    pytest.param("a\0b", r"contains '\\x00'", id="nul"),
    pytest.param("\ud800", r"contains '\\ud800'", id="lone-surrogate"),
    pytest.param("$JS", r"contains '\$'", id="system-subject"),
    pytest.param("$JS.API.>", r"contains '\$'", id="system-api"),
    pytest.param("_INBOX.x", r"contains '\.'", id="inbox"),
    pytest.param("../x", r"contains '\.'", id="path"),
    pytest.param("a/b", "contains '/'", id="slash"),
    pytest.param("%2e", "contains '%'", id="percent"),
    pytest.param("a.b", r"contains '\.'", id="dot"),
]
BAD_KEYS = [
    pytest.param("a..b", "empty", id="empty-token"),
    pytest.param(".a", "empty", id="leading-dot"),
    pytest.param("a.", "empty", id="trailing-dot"),
    pytest.param("", "empty", id="empty"),
    pytest.param(".", "empty", id="only-a-dot"),
    pytest.param("a.*", r"contains '\*'", id="star"),
    pytest.param("a.>", "contains '>'", id="tail"),
    pytest.param("k" * 4200, "4200 characters", id="above-the-control-line"),
    pytest.param("a.b.c.d.e.f.g.h.i", "more than 8 tokens", id="nine-tokens"),
    pytest.param("a b", "contains ' '", id="blank"),
]


@pytest.mark.parametrize(("token", "why"), BAD_TOKENS)
def test_a_bad_token_is_refused_with_its_fault(token: str, why: str) -> None:
    with pytest.raises(MalformedSubject, match=why):
        check_token("platform", token)
    with pytest.raises(MalformedSubject, match=why):
        NS.slice_offer(token, "tail", "shop1", "t1-0-1")


@pytest.mark.parametrize("token", [None, 7, b"a", ["a"]])
def test_what_is_not_text_is_refused(token: object) -> None:
    with pytest.raises(MalformedSubject, match="text is needed"):
        check_token("platform", token)  # type: ignore[arg-type]  # what an untyped caller may pass


def test_the_error_names_the_kind_and_what_is_allowed_and_is_one_short_line() -> None:
    with pytest.raises(MalformedSubject, match=r"^platform 'a b': .*use 1 to 64 of A-Z a-z 0-9 _ -$"):
        check_token("platform", "a b")
    with pytest.raises(MalformedSubject) as caught:
        check_token("platform", "\r\n" * 5000)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "why"), BAD_KEYS)
def test_a_bad_key_is_refused_with_its_fault(key: str, why: str) -> None:
    with pytest.raises(MalformedSubject, match=why):
        check_key(key)


@given(st.lists(TOKENS, min_size=1, max_size=8))
def test_one_to_eight_tokens_are_a_key(tokens: list[str]) -> None:
    key = ".".join(tokens)
    assert check_key(key) == key
    assert check_key_pattern(key) == key


@pytest.mark.parametrize("pattern", [">", "*", "a", "a.*", "a.*.b", "a.>", "*.>"])
def test_a_pattern_may_hold_stars_and_a_tail(pattern: str) -> None:
    assert check_key_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["", ".", "a.", ">.a", "a.>.b", "a*", "a.**", "a>", "a..>", "a b.>", ".>"])
def test_a_bad_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(MalformedSubject, match="key pattern"):
        check_key_pattern(pattern)


@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_what_is_built_parses_back(platform: str, lane: str, source: str, slice_id: str) -> None:
    subject = NS.slice_offer(platform, lane, source, slice_id)
    assert NS.parse(subject) == ("slices", platform, lane, source, slice_id)
    assert len(subject) <= MAX_SUBJECT


@pytest.mark.parametrize("subject", ["", "penstock", "other.slices.a", "penstock.", "penstock.a..b", "penstock.a b"])
def test_a_foreign_or_broken_subject_does_not_parse(subject: str) -> None:
    with pytest.raises(MalformedSubject):
        NS.parse(subject)


def test_names_carry_the_namespace() -> None:
    shop = Namespace("shop-2")
    assert shop.order("mall", "s1", "1001") == "shop-2.orders.mall.s1.1001"
    assert shop.event("fetch", "mall", "s1") == "shop-2.events.fetch.mall.s1"
    assert shop.dead("fetch", "mall", "x1") == "shop-2.dead.fetch.mall.x1"
    assert shop.pattern("slices", "*", "tail", ">") == "shop-2.slices.*.tail.>"
    assert (shop.stream("SLICES"), shop.bucket("LEDGERS")) == ("SHOP-2_SLICES", "SHOP-2_LEDGERS")
    assert kv_stream(shop.bucket("LEDGERS")) == "KV_SHOP-2_LEDGERS"


@pytest.mark.parametrize("name", ["", "Shop", "a.b", "a b", "*", ">", "x" * 33, "ü", "a\n"])
def test_a_bad_namespace_is_refused(name: str) -> None:
    with pytest.raises(MalformedSubject, match="lower case"):
        Namespace(name)


@pytest.mark.parametrize("name", ["kv", "kv_shop", "obj", "obj_1"])
def test_a_namespace_whose_streams_would_pose_as_buckets_is_refused(name: str) -> None:
    with pytest.raises(MalformedSubject, match="kv or obj"):
        Namespace(name)


@pytest.mark.parametrize("tokens", [(), (">", "a"), ("a*",), ("a", "")])
def test_a_bad_pattern_of_a_namespace_is_refused(tokens: tuple[str, ...]) -> None:
    with pytest.raises(MalformedSubject):
        NS.pattern(*tokens)


def test_a_subject_is_bounded() -> None:
    with pytest.raises(MalformedSubject, match="at most 512"):
        NS.subject(*["t" * 64] * 8)


@given(st.text())
@example("h_")
@example("\ud800")
@example("a\r\nb")
def test_any_text_becomes_a_token_and_the_same_one_again(text: str) -> None:
    assert TOKEN.fullmatch(token_of(text))
    assert token_of(text) == token_of(text)


@given(st.text(max_size=80), st.text(max_size=80))
def test_different_texts_get_different_tokens(first: str, second: str) -> None:
    assert (token_of(first) == token_of(second)) == (first == second)


def test_no_text_can_pose_as_the_hash_of_another() -> None:
    hashed = token_of("order #1001")
    assert hashed.startswith("h_")
    assert token_of(hashed) != hashed
    assert [is_hashed(token) for token in (hashed, token_of(hashed), token_of("order-1001"))] == [True, True, False]


@given(st.binary(min_size=16, max_size=16))
def test_a_digest_is_written_as_the_library_does(digest: bytes) -> None:
    assert _base32(digest) == base64.b32encode(digest).decode().rstrip("=").lower()


def test_token_of_stays_the_same_between_releases() -> None:
    """Tokens are in stored subjects: another hash would make every order new."""
    assert token_of("1001") == "1001"
    assert token_of("#1001 x") == "h_6jcbrp7uejt43xxemtuq3plnpq"


def test_a_job_has_one_subject_a_state_and_one_identity() -> None:
    assert NS.job("ready-high", "mail", "a1") == "penstock.jobs.ready-high.mail.a1"
    assert NS.job_in_any_state("mail", "a1") == "penstock.jobs.*.mail.a1"
    assert NS.jobs_in("delayed", "mail") == "penstock.jobs.delayed.mail.*"
    assert NS.jobs_in("*", "mail") == "penstock.jobs.*.mail.*"
    assert NS.parse(NS.job("reserved", "mail", token_of("order 7"))) == (
        "jobs",
        "reserved",
        "mail",
        token_of("order 7"),
    )


@pytest.mark.parametrize("topic", ["$JS.API.>", "_INBOX.x", "a.b", "*", ">", ""])
def test_a_topic_is_one_token(topic: str) -> None:
    with pytest.raises(MalformedSubject):
        NS.job("ready", topic, "a")


def test_the_longest_topic_and_key_fit() -> None:
    longest = Namespace("n" * 32)
    assert len(longest.job("ready-high", "t" * 64, "k" * 64)) < MAX_SUBJECT
