"""Which lanes a node pulls from."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.fetcher.decisions import Ended, NotNow, ReadSlice, WindowStored
from actors.fetch.fetcher.lanes import Lane, Readings, lanes_of
from actors.fetch.rules.ledger import OpenSlice
from actors.fetch.rules.settings import LONGEST_PLACE, FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.rules.placement import serves

PINS = st.sets(st.tuples(st.sampled_from(["mall", "shop"]), st.sampled_from(["", "cn", "eu", "n1"])))


def lanes(pins: Iterable[tuple[str, str]], *, labels: Iterable[str], bound: str = "", zone: str = "") -> set[Lane]:
    """Return the lanes of a node in a zone, if the sources have these pins and this bound."""
    settings = [(platform, FetchSettings(pin=pin, zone=bound)) for platform, pin in pins]
    return lanes_of(settings, lambda each: serves(tuple(labels), "n1", each.pin) and each.zone in ("", zone))


def test_a_platform_has_a_lane_for_the_tail_and_one_for_all_that_can_wait() -> None:
    assert lanes([("mall", "")], labels=()) == {Lane("mall", "tail"), Lane("mall", "back")}


def test_a_pinned_platform_has_lanes_of_its_own_for_nodes_with_the_label() -> None:
    pinned = {Lane("mall", "tail_cn"), Lane("mall", "back_cn")}
    assert lanes([("mall", "cn")], labels=("cn",)) == pinned
    assert lanes([("mall", "cn")], labels=("eu",)) == set()
    assert lanes([("mall", "n1")], labels=()) == {Lane("mall", "tail_n1"), Lane("mall", "back_n1")}


def test_a_bound_source_has_lanes_of_its_own() -> None:
    bound = {Lane("mall", "tail_cn_at_east"), Lane("mall", "back_cn_at_east")}
    assert lanes([("mall", "cn")], labels=("cn",), bound="east", zone="east") == bound
    assert lanes([("mall", "cn")], labels=("cn",), bound="east", zone="west") == set()
    assert FetchSettings(zone="shard:7").place == "at_shard_7"


def test_a_place_of_any_length_is_a_token_of_its_own() -> None:
    places = {FetchSettings(pin="p" * 32, zone=f"shard:{'x' * 60}{last}").place for last in "abc"}
    assert len(places) == 3
    assert all(len(place) <= LONGEST_PLACE for place in places)


@given(PINS, st.sets(st.sampled_from(["cn", "eu"])))
def test_every_pin_is_served_by_some_node_and_no_lane_by_a_node_without_it(
    pins: set[tuple[str, str]], labels: set[str]
) -> None:
    ours = lanes(pins, labels=labels)
    assert {lane.platform for lane in ours} <= {platform for platform, _ in pins}
    everywhere = lanes(pins, labels={"cn", "eu"})
    assert len(everywhere) == 2 * len(pins)
    assert ours <= everywhere
    assert all(lane.name.partition("_")[2] in {"", "n1", *labels} for lane in ours)
    assert {lane.is_tail for lane in ours} == ({True, False} if ours else set())


async def test_a_source_that_went_after_its_slice_was_taken_is_not_read() -> None:
    """Its new zone has not waited: nothing of the source was read here when the zone asked."""
    work = ReadSlice(SourceKey("mall", "s1"), OpenSlice("t", 1, 0, 60_000, fence=7), FetchSettings())
    told: list[list[SourceKey]] = []
    may = True

    class Reader:
        async def read(self, work: ReadSlice) -> Ended:
            told.append(readings.sources)
            return Ended(work.source, work.slice, WindowStored(), work.settings, 0.0)

    def may_read(source: SourceKey) -> bool:
        assert readings.sources == [source], "who asks while this is decided has to wait"
        return may

    readings = Readings(Reader(), may_read)
    assert (await readings.read(work)).outcome == WindowStored()
    may = False
    outcome = (await readings.read(work)).outcome
    assert isinstance(outcome, NotNow)
    assert (told, readings.sources) == ([[work.source]], [])
