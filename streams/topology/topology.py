"""The streams, buckets and consumers that have to be on the server: compared, applied, and required.

`apply` is called from one place (`penstock init`, and the first node of an embedded server), `require` by every node
before it works. A node never changes or makes a stream: the server would take the last writer's setting, and a stream
that an operator deleted would come back empty, with everything in it silently lost.
"""

import logging
from typing import Any

import anyio
from msgspec.structs import replace

from streams.clock import monotonic_s
from streams.errors import NoStream, OutcomeUnknown, Refused, TopologyMismatch
from streams.link.connection import Connection
from streams.subjects import api_prefix
from streams.topology.differences import (
    Difference,
    compare_consumer,
    compare_server,
    compare_stream,
    job_streams_in,
    merged,
    missing_truth,
    no_jetstream,
    parked_by,
    place_of,
)
from streams.topology.specs import ConsumerSpec, StreamSpec, Topology

log = logging.getLogger(__name__)

ASK_S = 3.0
ELECTION_S = 15.0
"""A cluster that lost its leader answers nothing for about eight seconds."""
_NOT_AVAILABLE = 10008
_NO_STORE = 10049
"""Seen once in some thousand creations, while other streams were being deleted. A second request works."""
_NO_PEERS = 10005
_NO_CONSUMER, _CONSUMER_EXISTS = 10014, 10148
_JETSTREAM_OFF = (10039, 10076)


async def learn_job_streams(connection: Connection, *, is_first_lost: bool = False) -> None:
    """Have the connection's namespace tell in how many streams the jobs of this server are. Called before anything asks
    it for one. `is_first_lost`: the first stream may have been deleted, then the second tells. Raises as
    `Connection.api`."""
    config: dict[str, Any] | None = None
    for short in ("JOBS", "JOBS_1") if is_first_lost else ("JOBS",):
        try:
            config = config or await _stream_config(connection, connection.namespace.stream(short))
        except Refused as refused:
            if not _is_off(refused):  # if it is, `diff` says so
                raise
    connection.namespace = replace(connection.namespace, job_streams=job_streams_in(config or {}))


async def diff(connection: Connection, topology: Topology) -> list[Difference]:
    """Return all differences, both those that keep nodes from running and those that are only reported."""
    found = await _server_differences(connection, topology)
    if found and found[0].setting == "jetstream":
        return found
    configs = {spec.name: await _stream_config(connection, spec.name) for spec in topology.all_streams()}
    deleted = missing_truth(topology, {name for name, config in configs.items() if config is not None})
    told = {difference.where for difference in deleted}
    for spec in topology.all_streams():
        if place_of(spec) not in told:
            found += compare_stream(spec, configs[spec.name])
        if spec.retention == "workqueue" and configs[spec.name] is not None:
            found += parked_by(spec.name, await _consumer_configs(connection, spec.name))
    for consumer in topology.consumers:
        found += compare_consumer(consumer, await _consumer_config(connection, consumer))
    return deleted + found


async def require(connection: Connection, topology: Topology) -> None:
    """Return if a node may run on this server, else raise TopologyMismatch, which names each setting and what to do."""
    found = await diff(connection, topology)
    for difference in found:
        if not difference.is_blocking:
            log.warning("topology.differs", extra={"fields": {"difference": str(difference)}})
    _refuse([difference for difference in found if difference.is_blocking])


async def apply(connection: Connection, topology: Topology, *, adopt: bool = False) -> list[Difference]:
    """Make or change what differs, and return what was made or changed. Several nodes may call it at once with the same
    topology.

    Raises TopologyMismatch, before anything is changed, for what cannot be changed in place, and for a stream that
    holds truth and was deleted. `adopt` makes that stream again, empty. What the installation has set beside our
    settings stays as it is.
    """
    found = await diff(connection, topology)
    stuck = [each for each in found if each.is_blocking and not each.is_fixable]
    deleted = [each for each in found if each.have == "deleted"]
    _refuse(stuck + ([] if adopt else deleted))
    for spec in topology.all_streams():
        await _apply_stream(connection, spec)
    for consumer in topology.consumers:
        await ensure_consumer(connection, consumer)
    _refuse([each for each in await diff(connection, topology) if each.is_blocking])
    return found


async def ensure_consumer(connection: Connection, spec: ConsumerSpec) -> None:
    """Make the consumer if it is not there. Raises TopologyMismatch if there is another one of that name, NoStream, and
    PermissionDenied, which does not end the connection here: one task may lack its right, and others not."""
    body = {"stream_name": spec.stream, "config": spec.config(), "action": "create"}
    make = f"CONSUMER.CREATE.{spec.stream}.{spec.name}"
    try:
        with connection.risking(api_prefix() + make):
            await _ask(connection, make, body)
    except Refused as error:
        if error.err_code != _CONSUMER_EXISTS:
            raise
        _refuse(compare_consumer(spec, await _consumer_config(connection, spec)))


def _refuse(differences: list[Difference]) -> None:
    if differences:
        raise TopologyMismatch([str(difference) for difference in differences])


async def _ask(connection: Connection, suffix: str, body: object | None = None) -> dict[str, Any]:
    """Send a request to the JetStream API, again and again through an election. Each request here is harmless to
    repeat."""
    give_up_s = monotonic_s() + ELECTION_S
    while True:
        try:
            return await connection.api(suffix, body, timeout_s=ASK_S)
        except OutcomeUnknown:
            if monotonic_s() > give_up_s:
                raise
        except Refused as refused:
            if not is_passing(refused) or monotonic_s() > give_up_s:
                raise
            await anyio.sleep(0.2)


def is_passing(refused: Refused) -> bool:
    """Return whether the server may answer otherwise in a moment, so that the same request should be repeated.

    A cluster that has just started answers before its servers have heard of each other. It then calls a peer offline.
    """
    is_peer_away = refused.err_code == _NO_PEERS and "offline" in refused.description
    return is_peer_away or refused.err_code in (_NOT_AVAILABLE, _NO_STORE)


async def _server_differences(connection: Connection, topology: Topology) -> list[Difference]:
    try:
        await _ask(connection, "INFO")
    except Refused as error:
        if not _is_off(error):
            raise
        return [no_jetstream(error.description)]
    client = connection.client
    version = client.connected_server_version
    servers = len({(url.hostname, url.port) for url in client.servers})
    return compare_server(topology, (version.major, version.minor, version.patch), servers)


def _is_off(refused: Refused) -> bool:
    return refused.err_code in _JETSTREAM_OFF or refused.code == 503


async def _apply_stream(connection: Connection, spec: StreamSpec) -> None:
    have = await _stream_config(connection, spec.name)
    if have is None:
        await _create_stream(connection, spec)
    elif compare_stream(spec, have):
        log.info("topology.changed", extra={"fields": {"stream": spec.name}})
        try:
            await _ask(connection, f"STREAM.UPDATE.{spec.name}", merged(spec, have))
        except Refused as refused:
            raise _not_taken(spec, refused) from refused


async def _create_stream(connection: Connection, spec: StreamSpec) -> None:
    """Make the stream. It is as good if another init made the same one at the same time."""
    try:
        await _ask(connection, f"STREAM.CREATE.{spec.name}", spec.config())
    except Refused as refused:
        raise _not_taken(spec, refused) from refused
    log.info("topology.created", extra={"fields": {"stream": spec.name}})


def _not_taken(spec: StreamSpec, refused: Refused) -> TopologyMismatch:
    hint = "; use replicas 1, or a cluster of that many servers" if spec.replicas > 1 else ""
    hint = "; start the server of the cluster that is down" if is_passing(refused) else hint
    return TopologyMismatch([f"{place_of(spec)}: the server refuses it: {refused.description}{hint}"])


async def _stream_config(connection: Connection, name: str) -> dict[str, Any] | None:
    try:
        return dict((await _ask(connection, f"STREAM.INFO.{name}"))["config"])
    except NoStream as error:
        if error.code == 503:
            raise
        return None


async def _consumer_config(connection: Connection, spec: ConsumerSpec) -> dict[str, Any] | None:
    try:
        return dict((await _ask(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}"))["config"])
    except NoStream as error:
        if error.code == 503:
            raise
        return None
    except Refused as error:
        if error.err_code != _NO_CONSUMER:
            raise
        return None


async def _consumer_configs(connection: Connection, stream: str) -> list[dict[str, Any]]:
    configs: list[dict[str, Any]] = []
    while True:
        answer = await _ask(connection, f"CONSUMER.LIST.{stream}", {"offset": len(configs)})
        page = [consumer["config"] for consumer in answer.get("consumers") or []]
        configs += page
        if not page or len(configs) >= answer.get("total", 0):
            return configs
