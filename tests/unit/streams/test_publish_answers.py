"""What the server's answer to a publish states."""

from streams.errors import OutcomeUnknown, RevisionConflict
from streams.publish.outcomes import Receipt, outcome_of


def test_an_answer_with_a_sequence_is_a_receipt() -> None:
    assert outcome_of(b'{"stream":"JOBS","seq":7}', "a") == Receipt("JOBS", 7)
    assert outcome_of(b'{"stream":"JOBS","seq":7,"duplicate":true}', "a") == Receipt("JOBS", 7, True)


def test_a_zone_called_error_gets_receipts() -> None:
    """Each zone is a domain of its server, and answers name it."""
    assert outcome_of(b'{"stream":"JOBS","domain":"error","seq":7}', "a") == Receipt("JOBS", 7)


def test_an_answer_with_an_error_is_that_error() -> None:
    answer = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"JOBS","seq":0}'
    assert isinstance(outcome_of(answer, "a"), RevisionConflict)


def test_an_answer_that_states_nothing_leaves_the_outcome_unknown() -> None:
    for answer in (b"", b"{}", b"garbage", b'{"error":', b'{"stream":"JOBS"}'):
        assert isinstance(outcome_of(answer, "a"), OutcomeUnknown), answer
