"""Zones with logins and TLS: a node reaches the hub's buckets, and nothing else of it."""

from pathlib import Path

import pytest
from anyio import fail_after

from streams.buckets.bucket import Bucket
from streams.buckets.entries import Change
from streams.errors import Disconnected
from streams.link.connection import connect
from streams.link.credentials import Credentials
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import hub
from streams.topology.topology import apply
from tests.support.accounts import Users
from tests.support.tls import make_certificates
from tests.support.zones import HUB, Secured, zones


async def test_a_zone_may_use_the_buckets_of_the_hub_and_change_nothing_else(binary: Path, tmp_path: Path) -> None:
    users, certificates = Users(), make_certificates(tmp_path)

    def login(role: str) -> Credentials:
        given = users.credentials(role)
        return Credentials(
            nkey_seed=given.nkey_seed, inbox_prefix=given.inbox_prefix, tls_ca=certificates["PENSTOCK_TLS_CA"]
        )

    quoted = {name: f'"{path}"' for name, path in certificates.items()}
    seed = {"PENSTOCK_LEAF_SEED": f'"{users.credentials("zone").nkey_seed}"'}
    secured = Secured({**users.environment(), **quoted, **seed}, login("admin"))
    namespace = Namespace("penstock")
    async with zones(tmp_path, secured=secured) as servers:
        async with connect(servers.url(HUB), name="init", namespace=namespace, credentials=login("admin")) as admin:
            await apply(admin, hub(namespace, profile="fast"))
        url = servers.url("east")
        async with (
            connect(url, name="node", namespace=namespace, credentials=login("node")) as node,
            Publisher(node) as publisher,
        ):
            for short in ("HUB_ROUTING", "HUB_ZONES", "HUB_OFFSETS"):
                bucket = Bucket(node, publisher, namespace.bucket(short), bytes, domain=HUB)
                with fail_after(60):
                    revision = await bucket.create("east", b"1")
                    await bucket.compare_and_set("east", b"2", revision)
                    assert [entry.raw for entry in await bucket.entries()] == [b"2"]
                    async with bucket.watch() as changes:
                        assert isinstance(await anext(changes), Change)
        async with connect(url, name="admin", namespace=namespace, credentials=login("admin")) as admin:
            for asked in ("STREAM.CREATE.MINE", "STREAM.DELETE.KV_PENSTOCK_HUB_ZONES", "STREAM.NAMES"):
                with pytest.raises(Disconnected):
                    await admin.api(asked, {}, timeout_s=2.0, domain=HUB)
