"""The topology on a real server: applied, applied again, damaged in each way, and refused with its reason."""

from pathlib import Path

import pytest
from anyio import create_task_group, fail_after

from streams.embedded.server import embedded_server
from streams.errors import NoStream, Refused, TopologyMismatch
from streams.link.connection import Connection, connect
from streams.publish.publisher import Outgoing, Publisher
from streams.topology.specs import (
    ConsumerSpec,
    Sizes,
    Topology,
    fetch_consumer,
    job_consumer,
    sink_consumer,
    submit_consumer,
    wanted,
)
from streams.topology.topology import apply, diff, ensure_consumer, require
from tests.support.server import stream_state


async def edit(connection: Connection, stream: str, **settings: object) -> None:
    """Change a stream as an operator would, with `nats stream edit`."""
    config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
    await connection.api(f"STREAM.UPDATE.{stream}", config | settings)


def topology_of(connection: Connection) -> Topology:
    return wanted(connection.namespace, profile="fast")


async def test_applied_once_it_fits_and_applied_again_nothing_changes(connection: Connection) -> None:
    topology = topology_of(connection)
    with pytest.raises(TopologyMismatch, match="run `penstock init`") as caught:
        await require(connection, topology)
    assert len(caught.value.differences) == len(topology.all_streams())
    assert len(await apply(connection, topology)) == len(topology.all_streams())
    assert await diff(connection, topology) == []
    await require(connection, topology)
    assert await apply(connection, topology) == []


async def test_several_may_apply_at_once(connection: Connection) -> None:
    topology = topology_of(connection)

    async def init() -> None:
        await apply(connection, topology)

    with fail_after(20):
        async with create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(init)
    await require(connection, topology)


async def test_two_installations_share_a_server(connection: Connection) -> None:
    other = connection.namespace.__class__(f"{connection.namespace.name}-b")
    await apply(connection, topology_of(connection))
    await apply(connection, wanted(other, profile="fast"))
    await require(connection, topology_of(connection))
    for spec in wanted(other).all_streams():
        await connection.api(f"STREAM.DELETE.{spec.name}")


@pytest.mark.parametrize(
    ("short", "change", "says"),
    [
        ("ORDERS", {"discard": "old", "max_bytes": 10**6}, "drop the oldest"),
        ("SLICES", {"max_msgs_per_subject": 5}, "what a key or a slice is"),
        ("SLICES", {"discard_new_per_subject": False}, "replace the first"),
        ("ORDERS", {"allow_direct": False}, "nobody to answer"),
    ],
)
async def test_a_setting_changed_by_hand_is_named_and_mended(
    connection: Connection, short: str, change: dict[str, object], says: str
) -> None:
    topology = topology_of(connection)
    await apply(connection, topology)
    stream = connection.namespace.stream(short)
    await edit(connection, stream, **change)
    with pytest.raises(TopologyMismatch, match=says) as caught:
        await require(connection, topology)
    assert all(stream in difference for difference in caught.value.differences)
    await apply(connection, topology)
    await require(connection, topology)


async def test_markers_in_the_lease_bucket_are_refused_and_mended(connection: Connection) -> None:
    topology = topology_of(connection)
    await apply(connection, topology)
    leases = f"KV_{connection.namespace.bucket('LEASES')}"
    await edit(connection, leases, subject_delete_marker_ttl=10**9)
    with pytest.raises(TopologyMismatch, match="marker that keeps everybody"):
        await require(connection, topology)
    await apply(connection, topology)
    await require(connection, topology)


async def test_ledgers_that_would_expire_are_refused(connection: Connection) -> None:
    topology = topology_of(connection)
    await apply(connection, topology)
    await edit(connection, f"KV_{connection.namespace.bucket('LEDGERS')}", max_age=3600 * 10**9)
    with pytest.raises(TopologyMismatch, match="max_age is 3600 s, needs 0 s"):
        await require(connection, topology)


async def test_what_an_operator_added_stays(connection: Connection) -> None:
    topology = topology_of(connection)
    await apply(connection, topology)
    orders = connection.namespace.stream("ORDERS")
    await edit(connection, orders, compression="s2", allow_msg_ttl=True, discard="old")
    await apply(connection, topology)
    config = (await connection.api(f"STREAM.INFO.{orders}"))["config"]
    assert (config["compression"], config["allow_msg_ttl"], config["discard"]) == ("s2", True, "new")


async def test_other_sizes_are_told_and_do_not_keep_a_node_from_running(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    topology = topology_of(connection)
    await apply(connection, topology)
    await edit(connection, connection.namespace.stream("EVENTS"), max_age=3600 * 10**9)
    await require(connection, topology)
    assert [record.message for record in caplog.records if record.name == "streams.topology.topology"].count(
        "topology.differs"
    ) == 1
    sized = wanted(connection.namespace, profile="fast", sizes=Sizes(events_days=1))
    await apply(connection, sized)
    assert await diff(connection, sized) == []


async def test_what_cannot_be_changed_is_refused_before_anything_is(connection: Connection) -> None:
    topology = topology_of(connection)
    dead = connection.namespace.stream("DEAD")
    subjects = [connection.namespace.pattern("dead", ">")]
    await connection.api(f"STREAM.CREATE.{dead}", {"name": dead, "subjects": subjects, "storage": "memory"})
    with pytest.raises(TopologyMismatch, match=r"storage is 'memory', needs 'file'.*cannot be changed in place"):
        await apply(connection, topology)
    assert (await connection.api("STREAM.NAMES", {"subject": subjects[0]}))["streams"] == [dead]
    with pytest.raises(NoStream):
        await connection.api(f"STREAM.INFO.{connection.namespace.stream('EVENTS')}")


async def test_a_deleted_ledger_bucket_is_told_loudly_and_not_made_again_unasked(connection: Connection) -> None:
    topology = topology_of(connection)
    await apply(connection, topology)
    bucket = connection.namespace.bucket("LEDGERS")
    await connection.api(f"STREAM.DELETE.KV_{bucket}")
    for attempt in (require, apply):
        with pytest.raises(TopologyMismatch, match=f"bucket {bucket} is deleted: .*penstock init --adopt"):
            await attempt(connection, topology)
    await apply(connection, topology, adopt=True)
    await require(connection, topology)


async def test_a_deleted_stream_of_pointers_is_simply_made_again(connection: Connection) -> None:
    topology = topology_of(connection)
    await apply(connection, topology)
    await connection.api(f"STREAM.DELETE.{connection.namespace.stream('SLICES')}")
    with pytest.raises(TopologyMismatch, match="is missing"):
        await require(connection, topology)
    await apply(connection, topology)
    await require(connection, topology)


async def test_a_consumer_that_parks_messages_keeps_nodes_from_running(connection: Connection) -> None:
    topology = topology_of(connection)
    await apply(connection, topology)
    slices = connection.namespace.stream("SLICES")
    config = {"durable_name": "odd", "ack_policy": "explicit", "max_deliver": 3}
    await connection.api(f"CONSUMER.CREATE.{slices}.odd", {"stream_name": slices, "config": config})
    with pytest.raises(TopologyMismatch, match=f"consumer odd of {slices}: max_deliver is 3, needs -1"):
        await require(connection, topology)


async def test_a_consumer_is_made_once_and_another_of_its_name_is_refused(connection: Connection) -> None:
    await apply(connection, topology_of(connection))
    spec = fetch_consumer(connection.namespace, "mall", "tail")
    with fail_after(30):
        async with create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(ensure_consumer, connection, spec)
    config = (await connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}"))["config"]
    assert (config["max_deliver"], config["ack_wait"], config["max_ack_pending"]) == (-1, 3 * 10**9, 10_000)
    other = ConsumerSpec(
        stream=spec.stream,
        name=spec.name,
        filter_subject=spec.filter_subject,
        about="",
        ack_wait_s=60.0,
        max_ack_pending=1,
    )
    with pytest.raises(TopologyMismatch, match="ack_wait is 3 s, needs 60 s") as caught:
        await ensure_consumer(connection, other)
    assert len(caught.value.differences) == 2
    config = (await connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}"))["config"]
    assert config["max_ack_pending"] == 10_000


async def test_consumers_of_a_topology_are_applied_and_required(connection: Connection) -> None:
    plain = topology_of(connection)
    with_sink = Topology(
        streams=plain.streams,
        buckets=plain.buckets,
        consumers=(sink_consumer(connection.namespace, "db"),),
        profile="fast",
    )
    await apply(connection, plain)
    with pytest.raises(TopologyMismatch, match=r"consumer sink_db of .* is missing"):
        await require(connection, with_sink)
    await apply(connection, with_sink)
    await require(connection, with_sink)


async def test_a_consumer_of_a_missing_stream_is_told(connection: Connection) -> None:
    with pytest.raises(NoStream):
        await ensure_consumer(connection, fetch_consumer(connection.namespace, "mall", "tail"))


async def test_a_slice_offered_twice_waits_once(connection: Connection, publisher: Publisher) -> None:
    """The subject is the slice's identity; the server keeps the first and refuses the rest, whatever the condition."""
    await apply(connection, topology_of(connection))
    subject = connection.namespace.slice_offer("mall", "tail", "shop1", "t1-0-60000")
    outcomes = await publisher.publish_many(
        [
            Outgoing(subject, b"1", None, {"Nats-Expected-Last-Subject-Sequence": "0"}),
            Outgoing(subject, b"2", None, {"Nats-Expected-Last-Subject-Sequence": "0"}),
            Outgoing(subject, b"3"),
        ]
    )
    assert [isinstance(outcome, Refused) for outcome in outcomes] == [False, True, True]
    assert (await stream_state(connection, connection.namespace.stream("SLICES")))["messages"] == 1


async def test_replicas_on_a_single_server_are_refused(connection: Connection) -> None:
    with pytest.raises(TopologyMismatch, match=r"replicas > 1 not supported.*use replicas 1, or a cluster"):
        await apply(connection, wanted(connection.namespace, replicas=3))


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_server_without_jetstream_is_told(tmp_path: Path) -> None:
    off = "accounts { A { users: [{user: a, password: a}] } }\nno_auth_user: a"
    async with embedded_server(tmp_path / "off", config=off) as server:
        async with connect(server.url, name="test") as connection:
            with fail_after(30), pytest.raises(TopologyMismatch, match=r"jetstream is 'off'.*enable it"):
                await require(connection, topology_of(connection))


async def test_the_consumers_of_jobs_are_made_and_made_again(connection: Connection) -> None:
    space = connection.namespace
    await apply(connection, topology_of(connection))
    for spec in (submit_consumer(space), *(job_consumer(space, "mail", lane) for lane in ("high", "normal", "low"))):
        await ensure_consumer(connection, spec)
        await ensure_consumer(connection, spec)
    assert await diff(connection, topology_of(connection)) == []
