"""Jobs as people write them: what is taken, and what each mistake is told as. Files: a bad line loses no other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.jobs.rules.job_answers import Added, Code, NotAdded
from penstock.errors import PenstockError, Timeout, Unavailable, UsageError
from penstock.rows.job_files import SubmitReport, add_rows, open_rows
from penstock.rows.job_rows import LONGEST_LINE, BadJobRow, Defaults, Read, read_body, read_due, read_rows, read_span
from streams.clock import monotonic_s
from streams.messages.jobs import LARGEST_BODY, NewJob

NOW_MS = 1_795_253_400_000
MAIL = Defaults(NewJob(topic="mail"))


# ---- spans, moments, bodies


def test_spans_have_units() -> None:
    assert read_span("--delay", "1h30m") == 5_400_000
    assert read_span("--delay", "0s") == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5", "has no unit"),
        ("-5m", "is negative"),
        ("", "is not a duration"),
        ("5 m", "is not a duration"),
        ("five", "is not a duration"),
        ("1e9s", "is not a duration"),
        ("0.5ms", "is not a whole number of milliseconds"),
    ],
)
def test_a_wrong_span_is_told_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--ttr '.*': {said}; write") as refused:
        read_span("--ttr", text)
    assert refused.value.exit_code == 2


def test_a_job_is_due_after_a_delay_or_at_a_moment() -> None:
    assert read_due("30m", "", now_ms=NOW_MS) == (1_800_000, None)
    assert read_due("", "", now_ms=NOW_MS) == (0, None)
    assert read_due("", "2026-11-21T09:30:00Z", now_ms=0) == (0, NOW_MS)
    assert read_due("", "2026-11-21T10:30", tz="Europe/Berlin", now_ms=0) == (0, NOW_MS)


@pytest.mark.parametrize(
    ("delay", "at", "tz", "said"),
    [
        ("1m", "now", "", "give one of them"),
        ("", "2026-11-21T10:30", "", "says no zone"),
        ("", "tomorrow", "", "is no moment"),
        ("", "2026-11-21T10:30", "Mars/Olympus", "no such time zone"),
    ],
)
def test_a_wrong_due_time_is_refused(delay: str, at: str, tz: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_due(delay, at, tz=tz, now_ms=NOW_MS)


def test_a_body_stands_in_the_argument_in_a_file_or_on_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "b.json"
    file.write_bytes(b'{"a": 1}\n')
    assert bytes(read_body('{"a":"ü"}')) == '{"a":"ü"}'.encode()
    assert bytes(read_body(f"@{file}")) == b'{"a": 1}'
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(b" [1] ")))
    assert bytes(read_body("-")) == b"[1]"


@pytest.mark.parametrize(
    ("text", "stdin", "said"),
    [
        ("hello", b"", "is no JSON; write"),
        ('{"a":1', b"", "is no JSON"),
        ("[1] [2]", b"", "is no JSON"),
        ("-", b"", "standard input: is no JSON"),
        ("-", b'"\xff"', "standard input: is no JSON"),
        ("@/nowhere/b.json", b"", "/nowhere/b.json: No such file"),
        ("@/", b"", "/: Is a directory"),
        ("-", b"1" * (LARGEST_BODY + 1), "more than 262144 bytes"),
        ("[" * 50_000, b"", "is no JSON"),
    ],
)
def test_what_is_no_body_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, stdin: bytes, said: str) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(stdin)))
    with pytest.raises(UsageError, match=said):
        read_body(text)


# ---- lines


def rows(*lines: bytes | object, defaults: Defaults = MAIL, from_line: int = 1) -> list[Read | BadJobRow]:
    data = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return list(read_rows(BytesIO(data), defaults, from_line=from_line, now_ms=NOW_MS))


def job(row: Read | BadJobRow) -> NewJob:
    assert isinstance(row, Read), row
    return row.job


def test_a_line_is_a_job_and_the_options_hold_where_it_says_nothing() -> None:
    defaults = Defaults(NewJob(topic="mail", delay_ms=5000, ttr_ms=9000, priority="low", attempts=3, on_same="error"))
    plain, own = rows(
        {}, {"topic": "t", "id": "7", "body": [1], "at": "2026-11-21T09:30:00Z", "ttr": "2m"}, defaults=defaults
    )
    assert job(plain) == NewJob(
        topic="mail", delay_ms=5000, ttr_ms=9000, priority="low", attempts=3, on_same="error", body=job(plain).body
    )
    assert bytes(job(plain).body) == b"null"
    assert (job(own).topic, job(own).id, bytes(job(own).body)) == ("t", "7", b"[1]")
    assert (job(own).delay_ms, job(own).due_ms, job(own).ttr_ms) == (0, NOW_MS, 120_000)


@pytest.mark.parametrize(
    ("line", "due"),
    [
        ({"delay": "1m"}, (60_000, None)),
        ({"delay_ms": 1}, (1, None)),
        ({"due_ms": 7}, (0, 7)),
        ({"at": "now"}, (0, NOW_MS)),
        ({"delay_ms": 0}, (0, None)),
    ],
)
def test_a_line_says_when_in_any_of_four_ways(line: object, due: tuple[int, int | None]) -> None:
    [row] = rows(line, defaults=Defaults(NewJob(topic="mail", delay_ms=5000)))
    assert (job(row).delay_ms, job(row).due_ms) == due


def test_expiry_of_a_line_goes_before_that_of_the_options() -> None:
    defaults = Defaults(NewJob(topic="mail", expires_in_ms=5))
    found = [
        job(row) for row in rows({}, {"expires": "1s"}, {"expires_in_ms": 3}, {"expires_ms": 9}, defaults=defaults)
    ]
    assert [(each.expires_in_ms, each.expires_ms) for each in found] == [(5, None), (1000, None), (3, None), (None, 9)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "is no job"),
        (b"[]", "Expected `object`"),
        (b'"x"', "Expected `object`"),
        ({"dealy": "1m"}, "unknown field `dealy`"),
        ({"id": 7}, "Expected `str`"),
        ({"delay": "5"}, "delay '5': has no unit"),
        ({"delay": "1m", "delay_ms": 1}, "delay and delay_ms: give one of them"),
        ({"ttr": "1m", "ttr_ms": 1}, "ttr and ttr_ms"),
        ({"at": "2026-11-21T09:30"}, "says no zone"),
        ({"priority": "urgent"}, "Invalid enum value 'urgent'"),
        ({"on_same": "x"}, "Invalid enum value"),
        (b'{"id": "\xff"}', "is no UTF-8"),
        (b"\xef\xbb\xbf{}", "is no job"),
        (b'{"body": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "is no job"),
        (b'{"body": "' + b"x" * LONGEST_LINE + b'"}', "a line has at most"),
    ],
)
def test_a_line_that_is_no_job_is_told_by_its_number(line: object, said: str) -> None:
    first, bad, last = rows({"id": "a"}, line, {"id": "b"})
    assert (job(first).id, job(last).id) == ("a", "b")
    assert isinstance(bad, BadJobRow)
    assert (bad.line, said in bad.reason) == (2, True), bad.reason
    assert len(bad.reason) < 300


def test_blank_lines_count_but_are_none() -> None:
    found = rows({"id": "a"}, b"", b"  \r", {"id": "b"}, b"")
    assert [(row.line, job(row).id) for row in found] == [(1, "a"), (4, "b")]
    assert [row.line for row in rows({}, {}, {}, from_line=2)] == [2, 3]


@given(st.lists(st.one_of(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), st.just(b"{}")), max_size=20))
def test_every_line_is_either_a_job_or_told(lines: list[bytes]) -> None:
    found = rows(*lines)
    text = [at for at, line in enumerate(lines, 1) if line and not line.isspace()]
    assert [row.line for row in found] == text
    assert all(isinstance(row, Read) == (lines[row.line - 1].strip() == b"{}") for row in found)


# ---- files


class Taker:
    """What stands for the nodes' service here: it takes what it is given but for some ids."""

    def __init__(self, *refused: str, fails_at: int = 0) -> None:
        self.taken: list[str] = []
        self._refused = refused
        self._fails_at = fails_at
        self.calls = 0

    async def __call__(self, jobs: Sequence[NewJob]) -> list[Added | NotAdded]:
        self.calls += 1
        if self.calls == self._fails_at:
            raise PenstockError("no node answers")
        answers: list[Added | NotAdded] = []
        for each in jobs:
            if each.id in self._refused:
                answers.append(NotAdded(code="quota", reason="full"))
            else:
                is_new = each.id not in self.taken
                self.taken.append(each.id)
                answers.append(Added(topic=each.topic, id=each.id, state="ready", due_ms=0, is_new=is_new))
        return answers


def numbered(count: int, *, broken: Sequence[int] = ()) -> BytesIO:
    return BytesIO(b"".join(b"{\n" if n in broken else b'{"id": "%d"}\n' % n for n in range(1, count + 1)))


async def told(taker: Taker, file: BytesIO, *, skips_bad: bool = False, from_line: int = 1) -> SubmitReport:
    found = SubmitReport()
    await add_rows(taker, file, MAIL, found, skips_bad=skips_bad, from_line=from_line)
    return found


async def test_a_file_goes_out_in_batches() -> None:
    taker = Taker()
    found = await told(taker, numbered(2500))
    assert (found.added, found.kept, found.bad, found.next_line, taker.calls) == (2500, 0, [], 0, 3)
    assert (await told(taker, numbered(10))).kept == 10


async def test_a_file_goes_out_at_a_rate_in_small_groups() -> None:
    taker, began_s, found = Taker(), monotonic_s(), SubmitReport()
    await add_rows(taker, numbered(250), MAIL, found, skips_bad=False, rate=1000)
    assert (found.added, taker.calls) == (250, 3)
    assert monotonic_s() - began_s >= (250 - 100) / 1000


async def test_a_broken_line_stops_before_it_and_one_can_go_on_from_there() -> None:
    taker = Taker()
    found = await told(taker, numbered(1500, broken=[1200]))
    assert (found.added, [bad.line for bad in found.bad], found.next_line) == (1199, [1200], 1200)
    rest = await told(taker, numbered(1500), from_line=found.next_line)
    assert (rest.added, rest.next_line) == (301, 0)
    assert taker.taken == [str(n) for n in range(1, 1501)], "none is lost, none comes twice"


async def test_broken_lines_are_left_out_if_so_asked() -> None:
    taker = Taker("30", "1400")
    found = await told(taker, numbered(1500, broken=[7, 1200]), skips_bad=True)
    assert (found.added, [bad.line for bad in found.bad], found.next_line) == (1496, [7, 30, 1200, 1400], 0)


class Troubled(Taker):
    """It answers like this at first: with nothing, with adds that are not known, or as a whole that is not there."""

    def __init__(self, *troubles: Code | type[PenstockError]) -> None:
        super().__init__()
        self._troubles = list(troubles)
        self.nonces: set[str] = set()

    async def __call__(self, jobs: Sequence[NewJob]) -> list[Added | NotAdded]:
        self.nonces.update(each.nonce for each in jobs)
        trouble = self._troubles.pop(0) if self._troubles else "ok"
        if not isinstance(trouble, str):
            raise trouble("no answer")
        if trouble == "ok":
            return await super().__call__(jobs)
        return [NotAdded(code=trouble, reason="the server is gone"), *await super().__call__(jobs[1:])]


async def test_what_is_not_known_is_asked_for_again_under_its_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.rows.job_files.AGAIN_S", (0.0,) * 4)
    taker = Troubled(Timeout, "unknown", Unavailable, "unavailable")
    found = await told(taker, numbered(1200))
    assert (found.added, found.bad, found.next_line) == (1200, [], 0)
    assert sorted(taker.taken, key=int) == [str(n) for n in range(1, 1201)]
    assert (len(taker.nonces), "" in taker.nonces) == (1200, False)


@pytest.mark.parametrize("trouble", ["unknown", Timeout])
@pytest.mark.parametrize("skips_bad", [True, False])
async def test_what_stays_unknown_ends_the_file_before_its_batch(
    monkeypatch: pytest.MonkeyPatch, trouble: Code | type[PenstockError], skips_bad: bool
) -> None:
    monkeypatch.setattr("penstock.rows.job_files.AGAIN_S", (0.0,) * 4)
    with pytest.raises(PenstockError, match=r"lines 1 to 1000: .*; --from-line 1 goes on with them"):
        await told(Troubled(*[trouble] * 5), numbered(1500), skips_bad=skips_bad)


@pytest.mark.parametrize(("line", "said"), [(b'{"id": "7"}\n', False), (b"{}\n", True)])
async def test_lines_without_an_id_whose_outcome_nobody_knows_may_come_twice_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, line: bytes, said: bool
) -> None:
    monkeypatch.setattr("penstock.rows.job_files.AGAIN_S", (0.0,) * 4)
    with pytest.raises(PenstockError, match="--from-line 1 goes on with them") as stopped:
        await told(Troubled(*[Timeout] * 5), BytesIO(line))
    assert ("those without an id that were added come twice" in str(stopped.value)) is said


async def test_a_file_that_is_stopped_has_told_from_where_to_go_on() -> None:
    found, taker = SubmitReport(), Taker()

    async def stop_at_the_second(jobs: Sequence[NewJob]) -> list[Added | NotAdded]:
        if taker.calls:
            raise KeyError("as a stop from outside")
        return await taker(jobs)

    with pytest.raises(KeyError):
        await add_rows(stop_at_the_second, numbered(2500), MAIL, found, skips_bad=False)
    assert (found.added, found.next_line) == (1000, 1001)


async def test_what_a_node_refuses_stops_after_its_batch() -> None:
    taker = Taker("30")
    found = await told(taker, numbered(2500))
    assert (found.added, found.bad, found.next_line) == (999, [BadJobRow(30, "full")], 1001)
    assert (await told(taker, numbered(2500), from_line=1001)).added == 1500


async def test_when_no_node_answers_it_is_said_from_where_to_go_on() -> None:
    with pytest.raises(PenstockError, match=r"lines 1001 to 2000: no node answers; --from-line 1001"):
        await told(Taker(fails_at=2), numbered(2500))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"--file /nowhere\.jsonl: No such file"), open_rows("/nowhere.jsonl"):
        pass
