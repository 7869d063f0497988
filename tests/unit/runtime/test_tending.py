"""Keys are looked at when due, each by one node, each look alone; what fails is looked at again and told once."""

import logging
from collections.abc import Callable, Mapping
from typing import cast

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.actor import FATAL
from actors.runtime.membership import Members, NodeRecord
from actors.runtime.tending import AGAIN_MS, Failures, Tending, tended_by
from streams.errors import PermissionDenied

log = logging.getLogger("of an actor")
NODES = ("n1", "n2", "n3")
KEYS = [f"key{number}" for number in range(20)]


class Gone(Exception):
    """Ends the looks at a key."""


class QuickClock:
    """A clock that goes on by itself: what is to be looked at again later is due at the next question."""

    def __init__(self) -> None:
        self.at_ms = 0

    def now_ms(self) -> int:
        self.at_ms += AGAIN_MS
        return self.at_ms


def failures() -> Failures[str]:
    return Failures(log, "look_failed", "key", (ValueError,))


class Looks:
    """Looks that take some turns and then end as `ends` says, the last of them well."""

    def __init__(self, ends: Mapping[str, list[Exception | int]], turns: Mapping[str, int]) -> None:
        self.begun: list[str] = []
        self.running: set[str] = set()
        self.most = 0
        self._ends = {key: list(each) for key, each in ends.items()}
        self._turns = turns

    async def look(self, key: str) -> int | None:
        assert key not in self.running, "two looks at one key at once"
        self.running.add(key)
        self.begun.append(key)
        self.most = max(self.most, len(self.running))
        for _ in range(self._turns.get(key, 0)):
            await checkpoint()
        self.running.discard(key)
        end = self._ends[key].pop(0) if self._ends[key] else None
        if isinstance(end, Exception):
            raise end
        return end


ENDS = st.lists(st.just(ValueError("so")) | st.just(KeyError("so")) | st.integers(0, 5), max_size=4)


@given(st.dictionaries(st.sampled_from(KEYS), ENDS, min_size=1), st.integers(1, 4), st.data())
def test_each_look_is_alone_and_what_fails_is_looked_at_again(
    ends: dict[str, list[Exception | int]], at_once: int, data: st.DataObject
) -> None:
    turns = {key: data.draw(st.integers(0, 3)) for key in ends}
    wanted = sum(len(each) + 1 for each in ends.values())
    again = data.draw(st.lists(st.sampled_from(sorted(ends))))

    async def main() -> Looks:
        looks, tending = Looks(ends, turns), Tending(QuickClock(), failures(), at_once=at_once)
        async with anyio.create_task_group() as tasks:
            for key in [*ends, *again]:
                tending.put(key)
            tasks.start_soon(tending.run, looks.look)
            for _ in range(2_000):
                if not looks.running and len(looks.begun) >= wanted:
                    break
                await checkpoint()
            tasks.cancel_scope.cancel()
        return looks

    looks = anyio.run(main)
    assert looks.most <= at_once
    assert {key: looks.begun.count(key) for key in ends} == {key: len(ends[key]) + 1 for key in ends}


async def test_one_key_that_hangs_holds_up_no_other() -> None:
    tending, seen = Tending(QuickClock(), failures(), at_once=2), list[str]()

    async def look(key: str) -> None:
        seen.append(key)
        if key == "hangs":
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tending.run, look)
        with anyio.fail_after(5):
            for count in range(3):
                tending.put("hangs")
                tending.put("other")
                while seen.count("other") <= count:
                    await checkpoint()
        tasks.cancel_scope.cancel()
    assert seen.count("hangs") == 1


async def test_a_final_error_ends_the_looks_until_the_key_is_put_again() -> None:
    tending, seen = Tending(QuickClock(), failures(), at_once=2, final=(Gone,)), list[str]()

    async def look(key: str) -> int | None:
        seen.append(key)
        if key == "gone":
            raise Gone("it")
        return 0 if seen.count(key) < 5 else None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tending.run, look)
        with anyio.fail_after(5):
            for key in ("gone", "other"):
                tending.put(key)
            while seen.count("other") < 5:
                await checkpoint()
            assert seen.count("gone") == 1
            tending.put("gone")
            while seen.count("gone") < 2:
                await checkpoint()
        tasks.cancel_scope.cancel()


async def test_what_no_restart_mends_comes_out() -> None:
    tending = Tending(QuickClock(), failures(), at_once=2)

    async def look(_key: str) -> None:
        raise PermissionDenied("no")

    tending.put("a")
    with anyio.fail_after(5), pytest.raises(ExceptionGroup) as raised:
        await tending.run(look)
    assert raised.value.subgroup(FATAL) is not None


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "y"]))))
def test_a_failure_is_told_once_for_each_reason(course: list[tuple[str, str]]) -> None:
    """The empty reason: a look that went well."""
    told, last, expected = failures(), dict[str, str](), list[tuple[str, str]]()
    kept = Kept()
    log.addHandler(kept)
    for key, reason in course:
        if not reason:
            told.over(key)
        else:
            told.tell(key, ValueError(reason) if reason == "x" else KeyError(reason))
            if last.get(key) != reason:
                expected.append((key, reason))
        last[key] = reason
    log.removeHandler(kept)
    facts = [record.__dict__["fields"] for record in kept.records]
    assert [(each["key"], each["error"].strip("'")) for each in facts] == expected
    assert [record.exc_info is not None for record in kept.records] == [reason == "y" for _, reason in expected]


def test_the_failures_of_other_keys_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    told = failures()
    for kept in (["a"], []):
        told.tell("a", ValueError("so"))
        told.tell("b", ValueError("so"))
        told.keep_only(kept)
    told.tell("a", ValueError("so"))
    keys = [record.__dict__["fields"]["key"] for record in caplog.records]
    assert keys == ["a", "b", "b", "a"]


class Crowd:
    """The live nodes as one of them sees them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._live: dict[str, NodeRecord] = {}
        self._listeners: list[Callable[[], None]] = []

    def live(self) -> Mapping[str, NodeRecord]:
        return self._live

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def become(self, roles: Mapping[str, tuple[str, ...]]) -> None:
        self._live = {name: NodeRecord(node=name, run="1", roles=each) for name, each in roles.items()}
        for listener in self._listeners:
            listener()


ROLES = st.lists(st.sampled_from(["tends", "rests"]), max_size=2).map(tuple)


@given(st.lists(st.dictionaries(st.sampled_from(NODES), ROLES), min_size=1, max_size=4))
def test_each_key_is_tended_by_one_live_node_of_the_role(course: list[dict[str, tuple[str, ...]]]) -> None:
    crowds = {name: Crowd(name) for name in NODES}
    tends = {name: tended_by(cast(Members, crowd), "tends") for name, crowd in crowds.items()}
    for roles in course:
        for crowd in crowds.values():
            crowd.become(roles)
        able = {name for name, each in roles.items() if not each or "tends" in each}
        for key in KEYS:
            owners = {name for name in NODES if tends[name](key)}
            assert owners <= able
            assert len(owners) == min(1, len(able))


def test_who_asks_at_a_change_hears_of_the_nodes_after_it() -> None:
    crowd, heard = Crowd("n1"), list[bool]()
    tends = tended_by(cast(Members, crowd), "tends")
    crowd.on_change(lambda: heard.append(tends("key")))
    for roles in ({"n1": ()}, {"n2": ()}, {"n1": ()}):
        crowd.become(roles)
    assert heard == [True, False, True]
