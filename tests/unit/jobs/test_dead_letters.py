"""Letters about jobs hold the whole job, and what goes round again is a new epoch of it."""

import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.dead_letters import job_again, job_dead_letter, job_of, malformed_dead_letter
from streams.errors import MalformedMessage
from streams.messages.fetch import DeadLetter, Try, dead_payload, decode_dead_letter, encode
from streams.messages.jobs import MOST_HISTORY, JobRecord
from streams.subjects import TOKEN

NOW_MS = 1_795_253_400_000
LINE = "attempt 2 at 2026-11-21T09:30:00Z on n1: no money: none"
JOB = JobRecord(
    topic="mail",
    id="order 7 / Grüße",
    due_ms=1,
    body=Raw(b'{"to": "a@b"}'),
    added_ms=NOW_MS - 5000,
    ttr_ms=60_000,
    attempts=3,
    most_attempts=3,
    priority="high",
    expires_ms=NOW_MS - 1,
    first_ms=2,
    history=("attempt 1: odd", LINE),
    holder="w1",
    until_ms=9,
    receipt="abc",
)


def test_a_letter_holds_the_whole_job_but_its_reservation() -> None:
    letter = decode_dead_letter(encode(job_dead_letter(JOB, "attempts used up")))
    assert (letter.engine, letter.name, letter.attempts, letter.first_ms) == ("jobs", "mail", 3, JOB.added_ms)
    assert TOKEN.fullmatch(letter.id)
    job = job_of(letter)
    assert replace(job, body=JOB.body) == replace(JOB, holder="", until_ms=0, receipt="")
    assert bytes(job.body) == bytes(JOB.body)


def test_history_is_told_line_by_line() -> None:
    odd, told = job_dead_letter(JOB, "x").history
    assert told == Try(attempt=2, at_ms=NOW_MS, node="n1", reason="no money: none")
    assert odd == Try(attempt=0, at_ms=0, reason="attempt 1: odd")
    for line in ("attempt 1 at nowhere: x", "attempt 1 at 9999-99-99T00:00:00Z: x"):
        assert job_dead_letter(replace(JOB, history=(line,)), "x").history == (Try(attempt=0, at_ms=0, reason=line),)


def test_what_goes_round_again_is_a_new_epoch_with_all_attempts() -> None:
    again = job_again(job_of(job_dead_letter(JOB, "x")), letter_seq=7, now_ms=NOW_MS)
    assert (again.id, again.topic, again.priority, again.first_ms) == (JOB.id, "mail", "high", 2)
    assert (again.attempts, again.due_ms, again.added_ms, again.expires_ms) == (0, NOW_MS, NOW_MS, 0)
    assert again.history[:2] == JOB.history
    same = job_again(JOB, letter_seq=7, now_ms=NOW_MS + 9)
    other = job_again(JOB, letter_seq=77, now_ms=NOW_MS)
    assert again.nonce == same.nonce != other.nonce, "an add of its own, known by the letter"
    assert again.trace_s > 0


def test_history_stays_bounded() -> None:
    job = JOB
    for seq in range(3 * MOST_HISTORY):
        job = job_again(job, letter_seq=seq, now_ms=NOW_MS)
    assert len(job.history) == MOST_HISTORY


@pytest.mark.parametrize("payload", [b"\xff\xfe", b"{}", b"[1"])
def test_what_is_no_job_is_kept_as_it_came(payload: bytes) -> None:
    letter: DeadLetter = malformed_dead_letter("mail", "k", payload, "no job: " + "x" * 9000, stored_ms=5)
    letter = decode_dead_letter(encode(letter))
    assert dead_payload(letter) == payload
    assert len(letter.reason) <= 2000
    with pytest.raises(MalformedMessage):
        job_of(letter)
