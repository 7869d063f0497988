"""What a node knows of a bucket, beside a naive server whose watch is behind, loses its link, and is put back."""

from collections import deque
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.runtime.rules.known_records import KnownRecords

KEYS = st.sampled_from("abc")


class Stored(NamedTuple):
    """A record of the server. The value names the write, so no two are the same."""

    value: int
    revision: int
    stored_ms: int


def known_of(records: KnownRecords[int]) -> dict[str, tuple[int | None, int]]:
    return {key: (known.value, known.revision) for key in records if (known := records.get(key))}


class Following(RuleBasedStateMachine):
    """`news`: what the watch has on its way; a key with its record, or with None, and None at the end of a reading."""

    def __init__(self) -> None:
        super().__init__()
        self.records: KnownRecords[int] = KnownRecords()
        self.server: dict[str, Stored] = {}
        self.copy: tuple[dict[str, Stored], int] = ({}, 0)
        self.revision = self.now_ms = 0
        self.news: deque[tuple[str, Stored | None] | None] = deque()
        self.is_linked = False

    # ---- the server

    def store(self, key: str) -> Stored:
        self.revision += 1
        self.now_ms += 1
        stored = self.server[key] = Stored(self.now_ms, self.revision, self.now_ms)
        self.report(key, stored)
        return stored

    def report(self, key: str, stored: Stored | None) -> None:
        if self.is_linked:
            self.news.append((key, stored))

    @rule(key=KEYS)
    def others_write(self, key: str) -> None:
        self.store(key)

    @rule(key=KEYS)
    def it_is_deleted(self, key: str) -> None:
        self.revision += 1
        if self.server.pop(key, None) is not None:
            self.report(key, None)

    @rule(key=KEYS)
    def we_write(self, key: str) -> None:
        stored = self.store(key)
        self.records.learn(key, stored.value, stored.revision)
        if self.is_linked:
            assert known_of(self.records)[key] == stored[:2]

    @rule()
    def a_copy_is_made(self) -> None:
        self.copy = dict(self.server), self.revision

    @rule()
    def the_link_is_lost(self) -> None:
        self.is_linked = False
        self.news.clear()

    @rule()
    def the_server_is_put_back(self) -> None:
        self.the_link_is_lost()
        self.server, self.revision = dict(self.copy[0]), self.copy[1]

    @precondition(lambda self: not self.is_linked)
    @rule()
    def a_reading_begins(self) -> None:
        self.records.begin()
        self.is_linked = True
        in_order = sorted(self.server.items(), key=lambda item: item[1].revision)
        self.news.extend([*in_order, None])

    # ---- the watch

    @precondition(lambda self: self.news)
    @rule()
    def it_reports(self) -> None:
        news = self.news.popleft()
        if news is None:
            before = set(self.records)
            assert set(self.records.end()) == before - set(self.records)
            return
        key, stored = news
        if stored is None:
            was_known = key in self.records
            assert self.records.drop(key) == was_known
            return
        before_it = known_of(self.records).get(key)
        known = self.records.get(key)
        is_ours = known is not None and known.stored_ms == 0
        if self.records.is_news(key, stored.revision, stored.stored_ms):
            assert is_ours or before_it != stored[:2], "it was known, and is reported once more"
            self.records.hear(key, stored.value, stored.revision, stored.stored_ms)
        else:
            assert before_it is not None
            assert before_it == stored[:2] or before_it[1] > stored.revision, "only older news may be ignored"

    @precondition(lambda self: self.news)
    @rule()
    def it_reports_all(self) -> None:
        while self.news:
            self.it_reports()

    @invariant()
    def who_has_heard_all_knows_what_is_there(self) -> None:
        if self.is_linked and not self.news:
            assert known_of(self.records) == {key: stored[:2] for key, stored in self.server.items()}


Following.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestFollowing = Following.TestCase


def test_our_own_write_is_not_undone_by_a_watch_that_is_behind() -> None:
    records: KnownRecords[str] = KnownRecords()
    records.begin()
    records.hear("a", "first", 1, 100)
    assert records.learn("a", "ours", 3)
    assert not records.is_news("a", 2, 101)
    assert not records.is_news("a", 3, 102)
    assert records.is_news("a", 4, 103)


def test_our_own_write_of_before_a_reading_gives_way_to_what_is_read() -> None:
    records: KnownRecords[str] = KnownRecords()
    records.begin()
    records.learn("kept", "ours", 8)
    records.learn("gone", "ours", 9)
    records.begin()
    assert records.is_news("kept", 5, 100), "the server was put back"
    records.hear("kept", "theirs", 5, 100)
    assert records.learn("new", "ours", 6)
    assert records.end() == ["gone"]
    assert set(records) == {"kept", "new"}


def test_a_revision_that_was_assigned_again_is_another_record() -> None:
    records: KnownRecords[str] = KnownRecords()
    records.begin()
    records.hear("a", "lost", 7, 100)
    records.begin()
    assert records.is_news("a", 7, 200)
    assert not records.is_news("a", 7, 100)


def test_a_record_that_was_read_and_is_no_news_stays() -> None:
    records: KnownRecords[str] = KnownRecords()
    records.begin()
    records.hear("a", "x", 1, 100)
    assert records.end() == []
    records.begin()
    assert not records.is_news("a", 1, 100)
    assert records.end() == []
    assert not records.learn("a", "older", 1)
