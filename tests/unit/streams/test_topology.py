"""The wanted topology as data, and how a server's answer is compared with it."""

from typing import Any

import pytest
from msgspec import structs

from streams.errors import MalformedSubject, Refused
from streams.subjects import Namespace
from streams.topology.differences import (
    WHY,
    Difference,
    compare_consumer,
    compare_server,
    compare_stream,
    merged,
    missing_truth,
    no_jetstream,
    parked_by,
)
from streams.topology.specs import (
    VERSION,
    VERSION_KEY,
    Profile,
    Sizes,
    StreamSpec,
    fetch_consumer,
    job_consumer,
    sink_consumer,
    submit_consumer,
    wanted,
)
from streams.topology.topology import is_passing

NS = Namespace()
SAFE = wanted(NS, profile="safe", replicas=3)
STREAMS = {spec.name.removeprefix("PENSTOCK_"): spec for spec in SAFE.all_streams()}


def as_server_tells(config: dict[str, object]) -> dict[str, Any]:
    """Leave out what is false or empty, and add what the server adds."""
    told = {name: value for name, value in config.items() if value or name in ("max_age", "max_msgs")}
    own = config.get("metadata")
    metadata = {"_nats.ver": "2.15.1", **(own if isinstance(own, dict) else {})}
    return {"max_consumers": -1, **told, "metadata": metadata, "compression": "none"}


def settings_of(found: list[Difference]) -> list[str]:
    return [difference.setting for difference in found]


def test_all_is_there_and_nothing_else() -> None:
    names = [spec.name for spec in SAFE.all_streams()]
    assert sorted(names) == sorted(
        [f"PENSTOCK_{short}" for short in ("SLICES", "ORDERS", "DEAD", "EVENTS", "JOBS", "SUBMIT", "ITEMS", "WORK")]
        + ["OBJ_PENSTOCK_FILES"]
        + [f"KV_PENSTOCK_{short}" for short in ("SETTINGS", "LEDGERS", "NODES", "LEASES", "DIGESTS")]
        + [f"KV_PENSTOCK_{short}" for short in ("TOPICS", "TOKENS", "RECURRING", "TASKS", "INSTANCES", "BEATS")]
        + ["KV_PENSTOCK_FLOWS", "KV_PENSTOCK_ROUTING", "KV_PENSTOCK_OFFSETS"]
    )


@pytest.mark.parametrize("spec", SAFE.all_streams(), ids=lambda spec: str(spec.name))
def test_what_was_applied_does_not_differ(spec: StreamSpec) -> None:
    assert compare_stream(spec, as_server_tells(spec.config())) == []


@pytest.mark.parametrize("spec", SAFE.all_streams(), ids=lambda spec: str(spec.name))
def test_every_setting_that_can_differ_has_its_reason(spec: StreamSpec) -> None:
    assert set(spec.config()) - {"name", "description"} <= set(WHY)
    assert set(fetch_consumer(NS, "mall", "tail").config()) - {"name", "durable_name", "description"} <= set(WHY)


def test_no_two_streams_share_a_subject() -> None:
    subjects = [subject for spec in SAFE.all_streams() for subject in spec.subjects]
    assert len(set(subjects)) == len(subjects)


def test_only_events_may_drop_the_oldest() -> None:
    """Jobs name it too, for the server allows schedules with nothing else; but without a limit there is no oldest."""
    dropping = [spec for spec in SAFE.all_streams() if spec.discard == "old"]
    assert [spec.name for spec in dropping] == ["PENSTOCK_EVENTS", "PENSTOCK_JOBS"]
    assert (dropping[1].max_msgs, dropping[1].max_bytes, dropping[1].max_age_s) == (-1, -1, 0)


@pytest.mark.parametrize("change", [{"max_msgs": 5}, {"max_bytes": 10**9}, {"max_age": 10**9}])
def test_a_limit_that_would_drop_jobs_blocks(change: dict[str, object]) -> None:
    spec = STREAMS["JOBS"]
    found = compare_stream(spec, as_server_tells(spec.config()) | change)
    assert settings_of(found) == list(change)
    assert found[0].is_blocking


@pytest.mark.parametrize(
    ("priority", "name", "filter_subject"),
    [
        ("high", "jobs-high_mail", "penstock.jobs.ready-high.mail.*"),
        ("normal", "jobs_mail", "penstock.jobs.ready.mail.*"),
        ("low", "jobs-low_mail", "penstock.jobs.ready-low.mail.*"),
    ],
)
def test_each_priority_of_a_topic_has_its_consumer(priority: str, name: str, filter_subject: str) -> None:
    spec = job_consumer(NS, "mail", priority)
    assert (spec.stream, spec.name, spec.filter_subject) == ("PENSTOCK_JOBS", name, filter_subject)
    assert spec.max_deliver == -1


def test_whatever_is_handed_in_is_looked_at() -> None:
    config = submit_consumer(NS).config()
    assert config["filter_subjects"] == ["penstock.submit.job.>", "penstock.submit.job"]
    assert "filter_subject" not in config
    assert set(config) - {"name", "durable_name", "description"} <= set(WHY)


def test_buckets_work_with_the_nats_command() -> None:
    """The command takes `KV_` streams on `$KV.<bucket>.>`, and needs rollup for purge and direct get for reading."""
    for bucket in SAFE.buckets:
        config = bucket.stream().config()
        assert config["subjects"] == [f"$KV.{bucket.name}.>"]
        assert config["allow_rollup_hdrs"] is True
        assert config["allow_direct"] is True
        assert config["deny_delete"] is True
        assert config["discard"] == "new"
        assert config["max_age"] == 0


def test_expiring_buckets_keep_one_revision() -> None:
    """With more, the expiry of the newest would uncover an older one."""
    assert all(bucket.history == 1 for bucket in SAFE.buckets if bucket.has_ttl)
    assert {bucket.name for bucket in SAFE.buckets if bucket.has_ttl} == {
        "PENSTOCK_NODES",
        "PENSTOCK_LEASES",
        "PENSTOCK_DIGESTS",
        "PENSTOCK_BEATS",
        "PENSTOCK_INSTANCES",
    }


@pytest.mark.parametrize(
    ("stream", "change", "says"),
    [
        pytest.param("ORDERS", {"discard": "old"}, "drop the oldest", id="orders-dropped-when-full"),
        pytest.param("SLICES", {"discard_new_per_subject": False}, "replace the first", id="offers-replaced"),
        pytest.param("SLICES", {"max_msgs_per_subject": -1}, "what a key or a slice is", id="offers-doubled"),
        pytest.param("ORDERS", {"subjects": ["penstock.orders.mall.>"]}, "would be refused", id="subjects"),
        pytest.param("ORDERS", {"num_replicas": 1}, "lost with one server", id="too-few-replicas"),
        pytest.param("ORDERS", {"allow_atomic": False}, "whole or not at all", id="no-batches"),
        pytest.param("ORDERS", {"subject_transform": {"src": ">", "dest": "x.>"}}, "other subjects", id="transform"),
        pytest.param("KV_PENSTOCK_LEDGERS", {"max_age": 1}, "older is dropped", id="ledgers-expire"),
        pytest.param("KV_PENSTOCK_LEASES", {"subject_delete_marker_ttl": 1}, "leave a marker", id="markers"),
        pytest.param("KV_PENSTOCK_LEASES", {"allow_msg_ttl": False}, "never expire", id="no-ttl"),
    ],
)
def test_an_unsafe_setting_blocks_and_init_mends_it(stream: str, change: dict[str, object], says: str) -> None:
    spec = STREAMS[stream]
    found = compare_stream(spec, as_server_tells(spec.config()) | change)
    assert settings_of(found) == list(change)
    assert found[0].is_blocking
    assert found[0].is_fixable
    assert says in str(found[0])
    assert "run `penstock init`" in str(found[0])
    assert spec.name.removeprefix("KV_") in str(found[0])


@pytest.mark.parametrize(
    ("stream", "change"),
    [
        ("ORDERS", {"storage": "memory"}),
        ("ORDERS", {"sealed": True}),
        ("ORDERS", {"mirror": {"name": "OTHER"}}),
        ("ORDERS", {"retention": "workqueue"}),
        ("SLICES", {"retention": "limits"}),
        ("ORDERS", {"deny_delete": True}),
        ("ORDERS", {"deny_purge": True}),
    ],
)
def test_what_cannot_be_changed_in_place_says_so(stream: str, change: dict[str, object]) -> None:
    spec = STREAMS[stream]
    found = compare_stream(spec, as_server_tells(spec.config()) | change)
    assert settings_of(found) == list(change)
    assert found[0].is_blocking
    assert not found[0].is_fixable
    assert "cannot be changed in place" in str(found[0])


@pytest.mark.parametrize(
    ("stream", "change"),
    [
        ("ORDERS", {"max_bytes": 10**9}),
        ("ORDERS", {"max_age": 10**9}),
        ("DEAD", {"max_msgs": 5}),
        ("SLICES", {"duplicate_window": 10**9}),
        ("SLICES", {"max_msg_size": -1}),
    ],
)
def test_sizes_and_ages_are_told_and_do_not_block(stream: str, change: dict[str, object]) -> None:
    spec = STREAMS[stream]
    found = compare_stream(spec, as_server_tells(spec.config()) | change)
    assert settings_of(found) == list(change)
    assert not found[0].is_blocking


@pytest.mark.parametrize(
    "change",
    [
        {"num_replicas": 5},
        {"allow_msg_schedules": True},
        {"description": "ours"},
        {"compression": "s2"},
        {"placement": {"tags": ["ssd"]}},
    ],
)
def test_what_is_no_harm_is_no_difference(change: dict[str, object]) -> None:
    spec = STREAMS["ORDERS"]
    assert compare_stream(spec, as_server_tells(spec.config()) | change) == []


@pytest.mark.parametrize(
    ("metadata", "blocks"),
    [({}, False), ({VERSION_KEY: "0"}, False), ({VERSION_KEY: "?"}, False), ({VERSION_KEY: str(VERSION + 1)}, True)],
)
def test_a_stream_of_another_version_is_told_and_a_newer_ones_is_left_alone(
    metadata: dict[str, str], blocks: bool
) -> None:
    spec = STREAMS["JOBS"]
    [found] = compare_stream(spec, as_server_tells(spec.config()) | {"metadata": {"_nats.ver": "2.15.1"} | metadata})
    assert (found.setting, found.is_blocking, found.is_fixable) == ("topology", blocks, not blocks)
    assert merged(spec, {"metadata": {"mine": "1"}})["metadata"] == {"mine": "1", VERSION_KEY: str(VERSION)}


def test_a_stream_with_few_consumers_is_told_and_blocks_nothing() -> None:
    """An installation of a release before has the server's own limit of 1,000."""
    spec = STREAMS["JOBS"]
    [found] = compare_stream(spec, as_server_tells(spec.config()) | {"max_consumers": -1})
    assert (found.setting, found.is_blocking, found.is_fixable) == ("max_consumers", False, True)
    assert merged(spec, as_server_tells(spec.config()) | {"max_consumers": -1})["max_consumers"] == 30_000


def test_a_change_keeps_what_was_granted_beyond_it() -> None:
    spec = STREAMS["ORDERS"]
    beyond = {"num_replicas": 5, "allow_msg_ttl": True, "compression": "s2", "placement": {"tags": ["ssd"]}}
    result = merged(spec, as_server_tells(spec.config()) | beyond | {"discard": "old"})
    assert {name: result[name] for name in beyond} == beyond
    assert result["discard"] == "new"
    assert compare_stream(spec, result) == []


def test_a_change_takes_markers_out_of_an_expiring_bucket() -> None:
    spec = STREAMS["KV_PENSTOCK_LEASES"]
    result = merged(spec, as_server_tells(spec.config()) | {"subject_delete_marker_ttl": 10**9, "num_replicas": 1})
    assert (result["subject_delete_marker_ttl"], result["num_replicas"]) == (0, 3)


def test_a_missing_stream_is_one_difference() -> None:
    found = compare_stream(STREAMS["KV_PENSTOCK_NODES"], None)
    assert [str(each) for each in found] == [
        "bucket PENSTOCK_NODES is missing: it is not on the server; run `penstock init`"
    ]
    assert found[0].made() == "bucket PENSTOCK_NODES: made"
    assert found[0].is_blocking


def test_a_deleted_ledger_bucket_is_told_from_a_first_start() -> None:
    every = [spec.name for spec in SAFE.all_streams()]
    assert missing_truth(SAFE, set()) == []
    assert missing_truth(SAFE, set(every)) == []
    gone = missing_truth(SAFE, set(every) - {"KV_PENSTOCK_LEDGERS", "PENSTOCK_ORDERS"})
    assert [each.where for each in gone] == ["bucket PENSTOCK_LEDGERS", "stream PENSTOCK_ORDERS"]
    assert "somebody deleted it" in str(gone[0])
    assert "--adopt" in str(gone[0])
    assert missing_truth(SAFE, set(every) - {"PENSTOCK_SLICES", "KV_PENSTOCK_NODES"}) == []


def test_a_first_start_that_was_cut_short_is_no_deletion() -> None:
    every = [spec.name for spec in SAFE.all_streams()]
    for made in range(len(every)):
        assert missing_truth(SAFE, set(every[:made])) == []


def test_one_replica_on_three_servers_is_refused_when_safe_and_taken_when_fast() -> None:
    def on_three(profile: Profile) -> list[Difference]:
        return compare_server(wanted(NS, profile=profile, replicas=1), (2, 15, 1), servers=3)

    assert "there are 3 servers" in str(on_three("safe")[0])
    assert on_three("fast") == []
    assert compare_server(SAFE, (2, 15, 1), servers=3) == []
    assert compare_server(wanted(NS, profile="safe"), (2, 15, 1), servers=1) == []


@pytest.mark.parametrize(
    ("version", "is_old"), [((2, 15, 0), True), ((2, 9, 99), True), ((2, 15, 1), False), ((3, 0, 0), False)]
)
def test_an_old_server_is_refused_by_its_version(version: tuple[int, int, int], is_old: bool) -> None:
    found = compare_server(SAFE, version, servers=3)
    assert [each.setting for each in found] == (["version"] if is_old else [])
    assert not is_old or "upgrade nats-server" in str(found[0])


def test_jetstream_off_says_what_to_do() -> None:
    assert "start nats-server with a `jetstream` block" in str(no_jetstream("JetStream not enabled"))


@pytest.mark.parametrize("replicas", [0, 2, 4, 6, -1])
def test_replicas_are_one_three_or_five(replicas: int) -> None:
    with pytest.raises(ValueError, match="use 1, 3 or 5"):
        wanted(NS, replicas=replicas)


def test_sizes_reach_the_streams() -> None:
    sizes = Sizes(orders_days=30, orders_bytes=10**9, dead_days=400, events_messages=5)
    streams = {spec.name: spec for spec in wanted(NS, sizes=sizes).streams}
    assert streams["PENSTOCK_ORDERS"].config()["max_age"] == 30 * 86_400 * 10**9
    assert streams["PENSTOCK_ORDERS"].max_bytes == 10**9
    assert streams["PENSTOCK_DEAD"].max_age_s == 400 * 86_400
    assert streams["PENSTOCK_EVENTS"].max_msgs == 5


def test_a_platform_and_lane_have_one_consumer() -> None:
    spec = fetch_consumer(NS, "mall", "tail_cn")
    assert (spec.stream, spec.name) == ("PENSTOCK_SLICES", "fetch_mall_tail_cn")
    assert spec.filter_subject == "penstock.slices.mall.tail_cn.>"
    assert (spec.max_deliver, spec.ack_wait_s) == (-1, 3.0)
    assert sink_consumer(NS, "db").filter_subject == "penstock.orders.>"


@pytest.mark.parametrize("platform", ["", "a b", "*", "a.b", "x" * 65])
def test_a_consumer_of_a_bad_platform_is_refused(platform: str) -> None:
    with pytest.raises(MalformedSubject):
        fetch_consumer(NS, platform, "tail")


def test_consumers_are_compared_by_what_matters() -> None:
    spec = sink_consumer(NS, "db")
    same = as_server_tells(spec.config())
    assert compare_consumer(spec, same | {"num_replicas": 0, "description": "x"}) == []
    assert settings_of(compare_consumer(spec, same | {"max_deliver": 5})) == ["max_deliver"]
    assert settings_of(compare_consumer(spec, same | {"backoff": [1]})) == ["backoff"]
    assert compare_consumer(spec, None)[0].have == "missing"
    assert "nats consumer rm PENSTOCK_ORDERS sink_db" in str(compare_consumer(spec, same | {"ack_policy": "none"})[0])


def test_a_consumer_that_parks_messages_is_named() -> None:
    found = parked_by(
        "PENSTOCK_SLICES", [{"durable_name": "odd", "max_deliver": 3}, {"name": "fine", "max_deliver": -1}]
    )
    assert [each.where for each in found] == ["consumer odd of PENSTOCK_SLICES"]
    assert "parks a message" in str(found[0])


def test_schedules_bring_what_they_imply() -> None:
    spec = structs.replace(STREAMS["SLICES"], allow_msg_schedules=True)
    assert spec.config()["allow_rollup_hdrs"] is True
    assert compare_stream(spec, as_server_tells(spec.config())) == []


@pytest.mark.parametrize(
    ("err_code", "description", "passes"),
    [
        (10005, "no suitable peers for placement, peer offline", True),  # three servers that have just started
        (10005, "no suitable peers for placement", False),
        (10008, "JetStream system temporarily unavailable", True),
        (10052, "stream configuration update can not change storage", False),
    ],
)
def test_what_passes_by_itself_is_asked_again_and_nothing_else(err_code: int, description: str, passes: bool) -> None:
    refused = Refused(description, subject="$JS.API.STREAM.CREATE.A", code=400, err_code=err_code)
    assert is_passing(refused) == passes
