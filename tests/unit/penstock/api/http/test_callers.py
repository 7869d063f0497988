"""Callers: tenants do not meet, and patterns reach no further than they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.api.http.callers import ANYBODY, Caller
from penstock.api.http.problems import RefusedRequest
from penstock.api.http.tokens import VERBS

TOPICS = some.from_regex(r"[A-Za-z0-9_-]{1,30}", fullmatch=True)
NAMESPACES = some.from_regex(r"[a-z0-9]{1,4}(-[a-z0-9]{1,4}){0,2}", fullmatch=True)


def caller(*topics: str, namespace: str = "") -> Caller:
    return Caller("t", verbs=VERBS, topics=topics, namespace=namespace)


@given(NAMESPACES, NAMESPACES, TOPICS, TOPICS)
def test_two_tenants_never_meet_in_one_topic(one: str, other: str, topic: str, another: str) -> None:
    inner = caller("*", namespace=one).inner(topic)
    assert caller("*", namespace=one).outer(inner) == topic
    if one != other:
        assert inner != caller("*", namespace=other).inner(another)
        assert not caller("*", namespace=other).is_own(inner)


@given(NAMESPACES, TOPICS)
def test_a_token_without_a_namespace_does_not_reach_into_tenants_by_a_star(namespace: str, topic: str) -> None:
    inner = caller("*", namespace=namespace).inner(topic)
    assert not caller("*").is_own(inner)
    assert caller(f"{namespace}--*").is_own(inner)
    assert caller(inner).is_own(inner)
    assert ANYBODY.is_own(inner)


@pytest.mark.parametrize(
    ("patterns", "topic", "is_own"),
    [
        (("shop1-*",), "shop1-orders", True),
        (("shop1-*",), "shop1-", True),
        (("shop1-*",), "shop10-orders", False),
        (("orders",), "orders", True),
        (("orders",), "orders2", False),
        (("a", "b*"), "bc", True),
        (("*",), "anything", True),
        (("*",), "default", False),
        (("*", "default"), "default", True),
        (("*",), "schedule-targets", False),
        (("*", "schedule-targets"), "schedule-targets", True),
    ],
)
def test_patterns_are_names_or_beginnings(patterns: tuple[str, ...], topic: str, is_own: bool) -> None:
    assert caller(*patterns).is_own(topic) is is_own
    if not is_own:
        with pytest.raises(RefusedRequest) as told:
            caller(*patterns).inner(topic)
        assert told.value.problem.status == 403
        assert topic not in told.value.problem.detail


def test_receipts_are_of_the_tenants_topics() -> None:
    tenant = caller("orders*", namespace="acme")
    assert tenant.inner_receipt("orders.k.7.abc") == "acme--orders.k.7.abc"
    assert tenant.outer("acme--orders.k.7.abc") == "orders.k.7.abc"
    assert tenant.inner_receipt("mail.k.7.abc") is None
    assert tenant.said("topic acme--orders is full") == "topic orders is full"


def test_verbs_are_needed() -> None:
    reader = Caller("t", verbs=("read",), topics=("*",))
    reader.check("read")
    with pytest.raises(RefusedRequest) as told:
        reader.check("add")
    assert told.value.problem.code == "forbidden"


def test_instances_are_their_tenants_and_tasks_everybodys() -> None:
    acme = Caller("a", verbs=VERBS, topics=("mail", "cou*"), namespace="acme")
    plain = Caller("p", verbs=VERBS, topics=("*",))
    assert [acme.may_run(task) for task in ("mail", "count", "mails")] == [True, True, False]
    assert acme.inner_id("b1") == "acme--b1"
    assert acme.outer("acme--b1") == "b1"
    assert [acme.is_of(tenant) for tenant in ("acme", "", "other")] == [True, False, False]
    assert [plain.is_of(tenant) for tenant in ("acme", "")] == [False, True]
    assert [one.may_name("acme--b1") for one in (acme, plain, ANYBODY)] == [True, False, True]
    assert ANYBODY.is_of("acme")
    assert ANYBODY.shown_tenant is None


@pytest.mark.parametrize(
    ("patterns", "kind", "name", "may"),
    [
        (("x-*",), "topic", "x-mail", True),
        (("x-*",), "topic", "mail", False),
        (("x-*",), "topic", "shop--x-mail", False),
        (("shop--*",), "topic", "shop--mail", True),
        (("x-*",), "task", "x-mail", True),
        (("x-*",), "task", "mail", False),
        (("x-*",), "flow", "mail", False),
        (("mail",), "flow", "mail", True),
        (("mall",), "platform", "mall", True),
        (("mall/s1",), "platform", "mall", False),
        (("mall/s1",), "source", "mall/s1", True),
        (("mall/*",), "source", "other/s1", False),
        (("*",), "topic", "shop--mail", True),
        (("*",), "source", "mall/s1", True),
    ],
)
def test_a_rate_is_of_the_topics_that_a_token_names(patterns: tuple[str, ...], kind: str, name: str, may: bool) -> None:
    assert caller(*patterns).may_limit(kind, name) is may
    assert not caller(*patterns, namespace="shop").may_limit(kind, name)
    assert ANYBODY.may_limit(kind, name)


def test_who_is_limited_is_no_operator() -> None:
    assert caller("*").is_operator
    assert ANYBODY.is_operator
    assert not caller("x-*").is_operator
    assert not caller("*", namespace="shop").is_operator
