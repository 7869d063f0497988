"""The server's refusals become the exceptions that callers know."""

import pytest

from streams.errors import (
    NoStream,
    OutcomeUnknown,
    PermissionDenied,
    Refused,
    RevisionConflict,
    StoreFull,
    TooLarge,
    TopologyMismatch,
    no_responders,
    refusal,
)


@pytest.mark.parametrize(
    ("err_code", "kind"),
    [
        (10071, RevisionConflict),
        (10059, NoStream),
        (10054, TooLarge),
        (10077, StoreFull),
        (10058, Refused),
        (0, Refused),
    ],
)
def test_each_error_code_has_its_kind(err_code: int, kind: type[Refused]) -> None:
    refused = refusal({"code": 400, "err_code": err_code, "description": "why"}, subject="a.b")
    assert type(refused) is kind
    assert (refused.code, refused.err_code, refused.description, refused.subject) == (400, err_code, "why", "a.b")
    assert str(refused).startswith("a.b: why")


@pytest.mark.parametrize("error", [{}, {"code": "x", "err_code": None, "description": 5}])
def test_an_odd_refusal_is_still_one(error: dict[str, object]) -> None:
    assert (refusal(error, subject="a").code, refusal(error, subject="a").err_code) == (0, 0)


@pytest.mark.parametrize(("description", "actual"), [("wrong last sequence: 17", 17), ("wrong last sequence", None)])
def test_a_conflict_knows_the_actual_sequence_if_it_was_told(description: str, actual: int | None) -> None:
    assert RevisionConflict(description, subject="a").actual == actual


def test_messages_name_the_facts() -> None:
    assert "message id 'm1'" in str(OutcomeUnknown("silence", subject="a", message_id="m1"))
    assert "message id" not in str(OutcomeUnknown("silence", subject="a"))
    assert no_responders("a.b").code == 503
    mismatch = TopologyMismatch(["one", "two"])
    assert mismatch.differences == ("one", "two")
    assert str(mismatch).splitlines()[1:] == ["one", "two"]


def test_a_denial_knows_its_subject_whatever_its_case() -> None:
    denial = PermissionDenied('permissions violation for publish to "secret.a"')
    assert denial.is_about("Secret.A")
    assert not denial.is_about("secret")
