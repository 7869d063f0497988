"""Since when the leader of a stream leads, on one server and on three."""

import math

import pytest

from streams.clock import monotonic_s
from streams.jobs.leader_terms import FRESH_S, LeaderTerm
from streams.link.connection import Connection
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.moments import a_moment


@pytest.mark.three_servers
async def test_a_stream_of_one_server_has_a_leader_for_ever(connection: Connection) -> None:
    await apply(connection, wanted(connection.namespace, profile="fast"))
    assert await LeaderTerm(connection, connection.namespace.stream("JOBS")).ask(5) == -math.inf


@pytest.mark.parametrize("server", ["three"], indirect=True, scope="session")
async def test_each_change_of_the_leader_begins_a_term(connection: Connection) -> None:
    await apply(connection, wanted(connection.namespace, replicas=3))
    stream = connection.namespace.stream("JOBS")
    term = LeaderTerm(connection, stream)
    begun_s = await term.ask(5)
    assert begun_s <= monotonic_s()
    changed_s = monotonic_s()
    await connection.api(f"STREAM.LEADER.STEPDOWN.{stream}")
    while monotonic_s() < changed_s + FRESH_S:
        await a_moment()
    assert changed_s < await term.ask(5) <= monotonic_s()
