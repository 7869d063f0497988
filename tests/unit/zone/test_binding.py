"""Work that is bound to a shard: who may begin it while the shard changes hands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from actors.runtime.rules.bounds import check_own_queue, nobody_text, read_bound
from actors.runtime.rules.setting_values import BadSetting
from actors.zone.rules.binding import has_given_up, is_left, usable, zone_of
from actors.zone.rules.routing import ShardMap, made, moved, next_map

FIRST = next_map(None, made({"a": "0", "b": "1"}, count=2), at_ms=0, by="", why="")
MOST_MAPS = 3


def maps() -> list[ShardMap]:
    """Return maps by epoch: shard 0 goes from a to b, and back."""
    found = [ShardMap(), FIRST]
    for zone in ("b", "a"):
        found.append(next_map(found[-1], moved(found[-1], {"0": zone}), at_ms=0, by="", why=""))
    return found


MAPS = maps()


@dataclass(frozen=True)
class Node:
    """A node: the map that it has heard of, what it has taken, what the others know of that, and whether it works."""

    zone: str
    heard: int = 1
    taken: int = 1
    told: int = 1
    since: int = 0
    """Of shard 0, if it may use it."""
    works: bool = False


State = tuple[int, Node, Node]


def looked(node: Node, other: Node, *, waits: bool = True) -> Node:
    """Return the node after a look, as `Bindings` does it."""
    shards = MAPS[node.heard]
    had = {"0": node.since} if node.since else {}
    taken = (other.told,) if waits else ()
    since = usable(shards, node.zone, had, taken=taken, overdue=()).get("0", 0)
    node = replace(node, since=since)
    if has_given_up(shards, node.zone, ["shard:0"] if node.works else []):
        node = replace(node, taken=node.heard)
    return node


def steps(state: State, *, waits: bool) -> Iterator[State]:
    """Yield what may come next."""
    epoch, *nodes = state
    if epoch < MOST_MAPS:
        yield (epoch + 1, nodes[0], nodes[1])
    for at in (0, 1):
        node, other = nodes[at], nodes[1 - at]
        after = [looked(node, other, waits=waits), replace(node, told=node.taken)]
        if node.heard < epoch:
            after.append(looked(replace(node, heard=node.heard + 1), other, waits=waits))
        if node.works:
            after.append(replace(node, works=False))
        elif node.since:
            after.append(replace(node, works=True))
        for each in after:
            yield (epoch, each, other) if at == 0 else (epoch, other, each)


def both_work(*, waits: bool) -> bool:
    """Search every order of events. Return whether both zones ever work on the shard at once."""
    start: State = (1, looked(Node("a"), Node("b")), looked(Node("b"), Node("a")))
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        if state[1].works and state[2].works:
            return True
        for after in steps(state, waits=waits):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    assert any(state[0] == MOST_MAPS and state[1].works for state in seen)  # it came back, and was worked on
    assert any(state[2].works for state in seen)
    return False


def test_two_zones_never_work_on_a_shard_at_once() -> None:
    assert not both_work(waits=True)


def test_a_new_owner_that_does_not_wait_is_caught() -> None:
    assert both_work(waits=False)


def test_an_owner_that_is_overdue_is_not_waited_for() -> None:
    assert usable(MAPS[2], "b", {}, taken=(1,), overdue=()).keys() == {"1"}
    assert usable(MAPS[2], "b", {}, taken=(1,), overdue=("0",)).keys() == {"0", "1"}


def test_a_node_that_starts_later_takes_nothing_away() -> None:
    had = usable(MAPS[2], "b", {}, taken=(2,), overdue=())
    assert usable(MAPS[2], "b", had, taken=(0,), overdue=()) == had


def test_a_bound_means_a_zone() -> None:
    assert zone_of(MAPS[2], "shard:0") == "b"
    assert zone_of(MAPS[2], "shard:9") is None
    assert zone_of(None, "shard:0") is None
    assert zone_of(None, "east") == "east"
    assert zone_of(None, "") == ""


@pytest.mark.parametrize("text", ["a b", "shard:", "shard:a/b", "x__y", "z" * 25, "shard:" + "7" * 65, 7])
def test_a_bound_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(BadSetting, match="zone"):
        read_bound("zone", text)


@pytest.mark.parametrize("text", ["", "east", "eu_1", "shard:7", "shard:DE"])
def test_a_bound_is_read(text: str) -> None:
    assert read_bound("zone", text) == text


def test_why_names_the_zone() -> None:
    assert nobody_text("c", "c") == "it is bound to zone c, which no node of it serves; start one with --zone c"
    assert "shard 7, which zone b owns, which no node" in nobody_text("shard:7", "b")
    assert "shard 7, which no zone owns" in nobody_text("shard:7", None)


@pytest.mark.parametrize(
    ("settled", "answer"),
    [
        ([], True),
        ([{"topics": 7}, {"topics": 9, "tasks": 1}], True),
        ([{"topics": 7}, {"topics": 6}], False),
        ([{"tasks": 1}], True),  # it runs no topics
        ([{}], False),  # of an earlier version
    ],
)
def test_a_setting_binds_once_all_others_have_heard_of_it(settled: list[dict[str, int]], answer: bool) -> None:
    assert is_left("topics", 7, settled) is answer


def test_where_zones_have_servers_of_their_own_a_flow_is_not_bound_to_a_shard() -> None:
    for bound in ("", "east", None):
        check_own_queue("pay", bound)
    with pytest.raises(ValueError, match="flow pay: zone=shard:7: zones on servers of their own"):
        check_own_queue("pay", "shard:7")
