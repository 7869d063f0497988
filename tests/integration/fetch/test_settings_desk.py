"""Settings are changed at the door: checked with everything below, shown as old and new, never half."""

from collections.abc import AsyncIterator, Awaitable
from functools import partial

import anyio
import pytest

from actors.fetch.settings.desk import Changed, Desk, change_level, read_stored, seed_levels
from actors.fetch.settings.history import kept_values
from actors.fetch.settings.levels import DEFAULT, LevelName, UnknownLevel
from actors.runtime.rules.setting_values import BadSetting
from streams.buckets.bucket import Bucket
from streams.clock import now_ms
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.server import make_topology

MALL, ONE, TWO = LevelName("mall"), LevelName("mall", "one"), LevelName("mall", "two")


@pytest.fixture
async def desk(connection: Connection) -> AsyncIterator[Desk]:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    name = connection.namespace.bucket("SETTINGS")
    async with Publisher(connection) as publisher:
        yield Desk(Bucket(connection, publisher, name, bytes), kept_values(connection, name))


async def put(desk: Desk, name: LevelName, *unset: str, **values: object) -> Changed:
    return await change_level(desk, name, values=values, unset=unset, now_ms=now_ms(), is_ahead=True)


async def test_a_change_is_stored_and_shows_old_and_new_at_every_source_below(desk: Desk) -> None:
    await desk.bucket.put("source.mall.two", b"{}")
    await put(desk, ONE, retries=1)
    changed = await put(desk, MALL, slice="2m", retries=7)
    assert (changed.before, changed.after) == ({}, {"slice": "2m", "retries": 7})
    assert changed.effects == {
        "mall": {"slice": ("auto", "2m"), "retries": (5, 7)},
        "mall/one": {"slice": ("auto", "2m")},
        "mall/two": {"slice": ("auto", "2m"), "retries": (5, 7)},
    }
    assert (await desk.bucket.get("fetch.mall")) is not None


async def test_unset_leaves_it_to_the_wider_level(desk: Desk) -> None:
    await put(desk, DEFAULT, retries=2)
    await put(desk, MALL, slice="2m", retries=7)
    changed = await put(desk, MALL, "retries")
    assert changed.after == {"slice": "2m"}
    assert changed.effects["mall"] == {"retries": (7, 2)}
    with pytest.raises(BadSetting, match="did you mean retries"):
        await put(desk, MALL, "retrise")


async def test_a_repeat_stores_nothing(desk: Desk) -> None:
    await put(desk, MALL, retries=7)
    revision = (await read_stored(desk)).revisions["fetch.mall"]
    assert (await put(desk, MALL, retries=7)).effects == {}
    assert (await read_stored(desk)).revisions["fetch.mall"] == revision


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"retries": -1}, "not within 0 to 100"),
        ({"retrise": 1}, "did you mean retries"),
        ({"slice": "5"}, "no unit"),
        ({"start": "2999-01-01T00:00:00Z"}, "future"),
        ({"overlap_before": "30s"}, "at mall/one"),
    ],
)
async def test_what_does_not_hold_is_refused_and_nothing_is_stored(
    desk: Desk, values: dict[str, object], said: str
) -> None:
    await put(desk, ONE, slice="5s")
    with pytest.raises(BadSetting, match=said):
        await put(desk, DEFAULT, **values)
    assert await desk.bucket.get("fetch.default") is None


async def test_a_trial_shows_and_stores_nothing(desk: Desk) -> None:
    changed = await change_level(desk, MALL, values={"retries": 7}, now_ms=now_ms(), is_ahead=True, is_trial=True)
    assert changed.effects == {"mall": {"retries": (5, 7)}}
    assert await desk.bucket.get("fetch.mall") is None


async def test_two_who_change_one_level_at_once_both_count(desk: Desk) -> None:
    async with anyio.create_task_group() as tasks:
        for name, value in {"retries": 1, "max_open": 2, "burst": 3, "losses": 4}.items():
            tasks.start_soon(partial(put, desk, MALL, **{name: value}))
    assert (await read_stored(desk)).levels.values(MALL) == {"retries": 1, "max_open": 2, "burst": 3, "losses": 4}


async def test_a_broken_level_is_only_written_anew_on_purpose(desk: Desk) -> None:
    await desk.bucket.put("fetch.mall", b'{"slice":"2m"}')
    await desk.bucket.put("fetch.mall", b"{")
    stored = await read_stored(desk)
    assert list(stored.broken) == ["fetch.mall"]
    assert stored.levels.settings(ONE).slice_ms == 120_000, "as nodes see it: the last good one"
    with pytest.raises(BadSetting, match="--replace"):
        await put(desk, MALL, retries=7)
    await change_level(desk, MALL, values={"retries": 7}, now_ms=now_ms(), is_replaced=True)
    stored = await read_stored(desk)
    assert (stored.broken, stored.levels.values(MALL)) == ({}, {"retries": 7})


async def test_a_level_is_mended_though_another_one_is_broken_as_well(desk: Desk) -> None:
    """What is in force of the other one is a value that was written over: it must not keep this one from its mend."""
    await put(desk, DEFAULT, slice="5m")
    await put(desk, MALL, overlap_before="2m")
    await desk.bucket.put("fetch.default", b'{"slice":"20s"}')  # does not fit with the platform's overlap
    assert list((await read_stored(desk)).broken) == ["fetch.default"]
    await desk.bucket.put("fetch.mall", b"{")
    assert (await read_stored(desk)).levels.settings(MALL).slice_ms == 300_000
    for name in (MALL, DEFAULT):
        await change_level(desk, name, values={"slice": "90s"}, now_ms=now_ms(), is_replaced=True, is_ahead=True)
    stored = await read_stored(desk)
    assert (stored.broken, stored.levels.settings(MALL).slice_ms) == ({}, 90_000)


async def test_a_platform_or_source_that_nobody_added_is_refused_unless_on_purpose(desk: Desk) -> None:
    def typed(name: LevelName, *, is_ahead: bool = False) -> Awaitable[Changed]:
        return change_level(desk, name, values={"retries": 1}, now_ms=now_ms(), is_ahead=is_ahead)

    with pytest.raises(UnknownLevel, match="there are no sources yet"):
        await typed(MALL)
    await desk.bucket.put("source.mall.one", b"{}")
    await typed(MALL)
    await typed(ONE)
    with pytest.raises(UnknownLevel, match="there is no source mall/on; did you mean mall/one"):
        await typed(LevelName("mall", "on"))
    with pytest.raises(UnknownLevel, match="there is no platform mal; did you mean mall"):
        await typed(LevelName("mal"))
    await typed(LevelName("fair"), is_ahead=True)
    await typed(LevelName("fair"))  # it has a level by now, which can be changed and taken back
    assert (await read_stored(desk)).levels.values(LevelName("mal")) == {}


async def test_where_a_source_begins_is_refused_once_it_is_read_and_changes_none_that_is(desk: Desk) -> None:
    await put(desk, ONE, start="-2d", retries=1)
    await desk.bucket.put("source.mall.one", b"{}")
    await put(desk, ONE, start="-2d", retries=2)  # no other start
    with pytest.raises(BadSetting, match=r"sources backfill mall/one FROM TO.*sources rewind mall/one FROM"):
        await put(desk, ONE, start="-2h")
    assert (await read_stored(desk)).levels.values(ONE) == {"start": "-2d", "retries": 2}
    await put(desk, ONE, "start")
    changed = await put(desk, MALL, start="-9d")
    assert changed.effects == {"mall": {"start": ("-90d", "-9d")}}  # for sources to come


async def test_a_seed_fills_what_is_not_there_yet(desk: Desk) -> None:
    await put(desk, MALL, retries=7)
    seed = {DEFAULT: {"retries": 1}, MALL: {"retries": 2}, ONE: {"retries": 3}}
    seeded = await seed_levels(desk, seed, now_ms=now_ms())
    assert (seeded.written, seeded.kept) == ((DEFAULT, ONE), (MALL,))
    stored = await read_stored(desk)
    assert [stored.levels.settings(name).retries for name in (DEFAULT, MALL, ONE, TWO)] == [1, 7, 3, 7]
    seeded = await seed_levels(desk, seed, now_ms=now_ms(), is_overwriting=True)
    assert seeded.kept == ()
    assert (await read_stored(desk)).levels.values(MALL) == {"retries": 2}


async def test_a_seed_that_does_not_hold_together_changes_nothing(desk: Desk) -> None:
    with pytest.raises(BadSetting, match="longer than the slice"):
        await seed_levels(desk, {DEFAULT: {"overlap_before": "30s"}, ONE: {"slice": "5s"}}, now_ms=now_ms())
    assert (await read_stored(desk)).revisions == {}


async def test_nodes_that_seed_the_same_at_once_do_not_stumble(desk: Desk) -> None:
    seed = {LevelName("mall", f"s{number}"): {"retries": number} for number in range(10)}
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(partial(seed_levels, desk, seed, now_ms=now_ms()))
    assert len((await read_stored(desk)).revisions) == 10
