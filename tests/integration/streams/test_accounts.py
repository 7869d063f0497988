"""The project's accounts on a real server: what each role may do, what it may not, and that a refusal is fatal."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from anyio import Event, create_task_group, fail_after

import penstock
from actors.runtime.rates.client import LeasedRates
from actors.runtime.rates.counts import RateCounts, gather_begun
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Synced
from streams.buckets.lease import acquire
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.errors import PermissionDenied, StreamError
from streams.link.connection import Connection, connect
from streams.link.frames import Message
from streams.micro import QUESTION_HEADER, WHO, Endpoint, Service
from streams.publish.publisher import Publisher
from streams.pull.puller import Puller
from streams.subjects import Namespace
from streams.topology.specs import fetch_consumer, sink_consumer, wanted
from streams.topology.topology import apply, ensure_consumer, require
from tests.support.accounts import Users, secured_server

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the server's permissions do not depend on the loop

NS = Namespace()
TOPOLOGY = wanted(NS, profile="fast")
API = "$JS.API."
EVERYBODY, NODE, ADMIN = "admin node console", "admin node", "admin"

APART = ("app", "console")
"""In accounts of their own, where what is not imported has nobody to answer."""

PUBLISH = {
    "offer a slice": ("penstock.slices.mall.tail.shop.t1-0-1", NODE),
    "store an order": ("penstock.orders.mall.shop.1", NODE),
    "bury": ("penstock.dead.fetch.mall.1", NODE),
    "tell an event": ("penstock.events.fetch.x", NODE),
    "add a job": ("penstock.jobs.ready.mail.1", NODE),
    "hand in a job": ("penstock.submit.job.mail", "admin node app"),
    "hand in a batch": ("penstock.submit.batch.x", "admin node app"),
    "ask the desk": ("penstock.api.jobs.add", "admin node app"),
    "find services": ("$SRV.PING", "admin app"),
    "ask a program to run items": ("penstock.ask.app.tags", NODE),
    "tell the timers": ("penstock.due.3", NODE),
    "ask the governor for shares": ("penstock.rates", NODE),
    "ask what nodes began under rates": ("penstock.rates-begun", NODE),
    "pull jobs": (f"{API}CONSUMER.MSG.NEXT.PENSTOCK_JOBS.jobs_mail", NODE),
    "make a topic's consumer": (f"{API}CONSUMER.CREATE.PENSTOCK_JOBS.jobs_mail", NODE),
    "settle jobs": ("$JS.ACK.PENSTOCK_JOBS.jobs_mail.1.1.1.1.1", NODE),
    "read a job": (f"{API}DIRECT.GET.PENSTOCK_JOBS", NODE),
    "delete jobs": (f"{API}STREAM.PURGE.PENSTOCK_JOBS", NODE),
    "remove what came back of the slices": (f"{API}STREAM.MSG.DELETE.PENSTOCK_SLICES", NODE),
    "look for what came back of the slices": (f"{API}STREAM.MSG.GET.PENSTOCK_SLICES", NODE),
    "write a token": ("$KV.PENSTOCK_TOKENS.a", NODE),
    "read tokens": (f"{API}DIRECT.GET.KV_PENSTOCK_TOKENS", NODE),
    "publish in another namespace": ("other.orders.mall.shop.1", ADMIN),
    "write a ledger": ("$KV.PENSTOCK_LEDGERS.mall.shop", NODE),
    "write a setting": ("$KV.PENSTOCK_SETTINGS.fetch", NODE),
    "take a lease": ("$KV.PENSTOCK_LEASES.monitor", NODE),
    "show up as a node": ("$KV.PENSTOCK_NODES.n1", NODE),
    "write a digest": ("$KV.PENSTOCK_DIGESTS.mall.shop", NODE),
    "write another bucket": ("$KV.OTHER.x", ADMIN),
    "read a setting": (f"{API}DIRECT.GET.KV_PENSTOCK_SETTINGS.$KV.PENSTOCK_SETTINGS.fetch", EVERYBODY),
    "read all ledgers": (f"{API}DIRECT.GET.KV_PENSTOCK_LEDGERS", EVERYBODY),
    "read a lease": (f"{API}DIRECT.GET.KV_PENSTOCK_LEASES.$KV.PENSTOCK_LEASES.monitor", "admin node console"),
    "read dead letters": (f"{API}DIRECT.GET.PENSTOCK_DEAD", "admin node console"),
    "read stored orders": (f"{API}DIRECT.GET.PENSTOCK_ORDERS", ADMIN),
    "read an order by sequence": (f"{API}STREAM.MSG.GET.PENSTOCK_ORDERS", ADMIN),
    "watch ledgers": (f"{API}CONSUMER.CREATE.KV_PENSTOCK_LEDGERS.w", NODE),
    "make a fetch consumer": (f"{API}CONSUMER.CREATE.PENSTOCK_SLICES.fetch_mall_tail", NODE),
    "make a sink consumer": (f"{API}CONSUMER.CREATE.PENSTOCK_ORDERS.sink_db", NODE),
    "watch dead letters": (f"{API}CONSUMER.CREATE.PENSTOCK_DEAD.w", ADMIN),
    "pull slices": (f"{API}CONSUMER.MSG.NEXT.PENSTOCK_SLICES.fetch_mall_tail", NODE),
    "pull orders": (f"{API}CONSUMER.MSG.NEXT.PENSTOCK_ORDERS.sink_db", NODE),
    "settle slices": ("$JS.ACK.PENSTOCK_SLICES.fetch_mall_tail.1.1.1.1.1", NODE),
    "settle orders": ("$JS.ACK.PENSTOCK_ORDERS.sink_db.1.1.1.1.1", NODE),
    "look at a stream": (f"{API}STREAM.INFO.PENSTOCK_ORDERS", EVERYBODY),
    "list consumers": (f"{API}CONSUMER.LIST.PENSTOCK_SLICES", EVERYBODY),
    "make a stream": (f"{API}STREAM.CREATE.EXTRA", ADMIN),
    "change a stream": (f"{API}STREAM.UPDATE.PENSTOCK_ORDERS", ADMIN),
    "empty a stream": (f"{API}STREAM.PURGE.PENSTOCK_ORDERS", ADMIN),
    "delete a stream": (f"{API}STREAM.DELETE.PENSTOCK_ORDERS", ADMIN),
    "delete a message": (f"{API}STREAM.MSG.DELETE.PENSTOCK_ORDERS", ADMIN),
    "restore a stream": (f"{API}STREAM.RESTORE.PENSTOCK_ORDERS", ADMIN),
    "copy a stream": (f"{API}STREAM.SNAPSHOT.PENSTOCK_ORDERS", ADMIN),
    "delete a consumer": (f"{API}CONSUMER.DELETE.PENSTOCK_SLICES.fetch_mall_tail", ADMIN),
    "answer another user": ("_INBOX_node.forged", ADMIN),
}
SUBSCRIBE = {
    "be asked what was begun under rates": ("penstock.rates-begun", NODE),
    "hear its own answers": ("_INBOX_{role}.x", f"{EVERYBODY} app"),
    "be asked": ("penstock.api.jobs.add", NODE),
    "be asked to run items": ("penstock.ask.app.tags", "admin app"),
    "hear a node's answers": ("_INBOX_node.>", NODE),
    "hear everybody's answers": ("_INBOX.>", ADMIN),
    "hear orders pass": ("penstock.orders.>", ADMIN),
    "hear what becomes of batches": ("penstock.events.batch.>", "admin console app"),
    "hear events": ("penstock.events.>", "admin console"),
    "hear everything": (">", ADMIN),
    "hear the api": ("$JS.>", ADMIN),
}


@pytest.fixture(scope="module")
def users() -> Users:
    return Users()


@pytest.fixture(scope="module")
def secured(users: Users, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with secured_server(tmp_path_factory.mktemp("secured"), users) as running:
        yield running


@asynccontextmanager
async def logged_in(server: EmbeddedServer, users: Users, role: str) -> AsyncIterator[Connection]:
    async with connect(server.url, name=role, credentials=users.credentials(role)) as connection:
        yield connection


async def denied(connection: Connection, subject: str, *, subscribe: bool) -> list[StreamError]:
    """Publish or subscribe, and return what the server said against it by the time it answered a ping."""
    heard: list[StreamError] = []
    remove = connection.on_failure(heard.append)
    inbox = connection.new_inbox()
    said: list[Message] = []
    subscription = await connection.subscribe(subject if subscribe else inbox, said.append)
    if not subscribe:
        # What is no empty request and no JSON is refused by the API itself, so nothing allowed does any harm.
        await connection.publish_core(subject, b"x", reply=inbox)
    await connection.flush()
    await subscription.unsubscribe()
    remove()
    if connection.name in APART and not subscribe and [one for one in said if one.status == 503]:
        heard.append(PermissionDenied(f"{subject}: nobody there, for the account does not import it"))
    return heard


@pytest.mark.parametrize("role", ["admin", "node", "console", "app"])
async def test_each_role_may_do_what_it_needs_and_nothing_else(
    secured: EmbeddedServer, users: Users, role: str
) -> None:
    wrong: list[str] = []
    with fail_after(40):
        async with logged_in(secured, users, "admin") as admin:
            await apply(admin, TOPOLOGY)
            for subject in ("penstock.api.>", "$SRV.>"):  # somebody is there, whom some may ask
                await admin.subscribe(subject, lambda message: None)
            await admin.flush()
            for verbs, subscribe in ((PUBLISH, False), (SUBSCRIBE, True)):
                for verb, (subject, allowed) in verbs.items():
                    async with logged_in(secured, users, role) as connection:
                        refusals = await denied(connection, subject.format(role=role), subscribe=subscribe)
                    if bool(refusals) == (role in allowed.split()):
                        wrong.append(f"{role} may{'' if not refusals else ' not'} {verb}: {refusals}")
                    if refusals and not isinstance(refusals[0], PermissionDenied):
                        wrong.append(f"{role}, {verb}: {refusals[0]!r}")
    assert wrong == []


async def test_a_node_works_within_its_list(secured: EmbeddedServer, users: Users) -> None:
    with fail_after(20):
        async with logged_in(secured, users, "admin") as admin:
            await apply(admin, TOPOLOGY)
        async with logged_in(secured, users, "node") as connection, Publisher(connection) as publisher:
            await require(connection, TOPOLOGY)
            for short in ("LEDGERS", "SETTINGS", "NODES", "LEASES", "DIGESTS"):
                await _every_verb_of_a_bucket(Bucket(connection, publisher, NS.bucket(short), bytes))
            lease = await acquire(Bucket(connection, publisher, NS.bucket("LEASES"), bytes), "m", "n", ttl_s=5)
            assert lease is not None
            await lease.renew()
            await lease.release()
            await _offer_and_fetch(connection, connection, publisher)
            await publisher.publish(NS.order("mall", "shop", "1"), b"{}")
            await _pull(connection, sink_consumer(NS, "db").stream, "sink_db")
            await connection.flush()


async def test_a_node_answers_whoever_asks_its_services(secured: EmbeddedServer, users: Users) -> None:
    """A refused answer would end the node."""

    async def echo(request: Message) -> bytes:
        return request.payload

    endpoint = Endpoint("echo", NS.api("jobs", "echo"), echo)
    with fail_after(20):
        async with logged_in(secured, users, "node") as node, logged_in(secured, users, "app") as app:
            refused: list[StreamError] = []
            node.on_failure(refused.append)
            service = Service(node, name="svc", version="1.0.0", about="for tests", endpoints=[endpoint])
            async with create_task_group() as tasks:
                stop = Event()
                await tasks.start(service.serve, stop)
                for number in range(20):
                    answer = await app.request(endpoint.subject, b"%d" % number)
                    assert answer.payload == b"%d" % number
                assert b"ping_response" in (await app.request("$SRV.PING.svc")).payload
                stop.set()
            assert refused == []


async def test_only_who_may_do_what_a_node_may_stores_jobs_by_itself(secured: EmbeddedServer, users: Users) -> None:
    async with logged_in(secured, users, "admin") as admin:
        await apply(admin, TOPOLOGY)
    node = penstock.connect(secured.url, credentials=users.credentials("node"), direct=True, timeout_s=20)
    async with node as client:
        assert (await client.jobs.add("mail", id="direct")).is_new
    app = penstock.connect(secured.url, credentials=users.credentials("app"), direct=True)
    with pytest.raises(penstock.PenstockError):
        async with app:
            pass


async def test_nodes_tell_each_other_what_they_began(secured: EmbeddedServer, users: Users) -> None:
    """Each replies to itself and to the other, as often as it is asked. A refused reply would end the node."""
    with fail_after(20):
        async with logged_in(secured, users, "node") as first, logged_in(secured, users, "node") as second:
            refused: list[StreamError] = []
            async with create_task_group() as tasks:
                stop = Event()
                for name, node in (("n1", first), ("n2", second)):
                    node.on_failure(refused.append)
                    rates = LeasedRates(node, name)
                    rates.begun.add("jobs.mail", 3, rates.clock.now_ms() // 1000)
                    await tasks.start(RateCounts(node, rates, name, stop).run)
                    await node.flush()  # the server knows that it listens
                now_s = now_ms() // 1000
                for _ in range(20):
                    told = await gather_begun(first, lambda: {"n1", "n2"}, ["jobs.mail"], until_s=now_s, seconds=60)
                    assert [(node.node, sum(node.keys[0].begun)) for node in told.nodes] == [("n1", 3), ("n2", 3)]
                    assert told.silent == ()
                told = await gather_begun(first, lambda: {"n1", "n3"}, ["jobs.x"], until_s=now_s, seconds=1)
                assert ([node.keys for node in told.nodes], told.silent) == ([(), ()], ("n3",))
                await first.publish_core(NS.rates_begun(), b"{", reply=first.new_inbox())  # logged, and no more
                await first.flush()
                stop.set()
            assert refused == []


async def test_all_nodes_are_asked_from_another_account_who_has_a_question(
    secured: EmbeddedServer, users: Users
) -> None:
    """Several answer, of which one gets through, and no answer is refused, which would end its node."""
    begun, go_on = Event(), Event()

    async def slow(request: Message) -> bytes:
        begun.set()
        await go_on.wait()
        return request.payload

    endpoint, who = Endpoint("slow", NS.api("jobs", "slow"), slow), NS.api("jobs", WHO)
    refused: list[StreamError] = []
    with fail_after(30):
        async with (
            logged_in(secured, users, "node") as one,
            logged_in(secured, users, "node") as other,
            logged_in(secured, users, "app") as app,
            create_task_group() as tasks,
        ):
            stop = Event()
            for node in (one, other):
                node.on_failure(refused.append)
                service = Service(node, name="svc", version="1.0.0", about="for tests", endpoints=[endpoint], who=who)
                await tasks.start(service.serve, stop)
            asked = app.send_request_now(endpoint.subject, b"1", headers={QUESTION_HEADER: "mine"})
            await begun.wait()
            has = json.loads((await app.request(who, b"mine")).payload)
            assert has["is_at_it"] is True
            lives = json.loads((await app.request(who, b"another")).payload)
            assert lives["is_at_it"] is False
            go_on.set()
            assert (await asked).payload == b"1"
            assert (await app.request(f"{endpoint.subject}.{lives['id']}", b"2")).payload == b"2"
            for node in (one, other):
                await node.flush()
            stop.set()
    assert refused == []


async def test_a_refused_publish_is_told_at_once_and_ends_the_connection(secured: EmbeddedServer, users: Users) -> None:
    """By itself the server's refusal of a request is a silent timeout."""
    with fail_after(20):
        async with logged_in(secured, users, "app") as connection:
            with pytest.raises(PermissionDenied, match="check this user's permissions"):
                await connection.request("$JS.API.STREAM.PURGE.PENSTOCK_ORDERS", timeout_s=4.0)
            with pytest.raises(PermissionDenied):
                await connection.failure()


async def test_a_forbidden_write_through_publisher_and_bucket_is_denied(secured: EmbeddedServer, users: Users) -> None:
    with fail_after(30):
        async with logged_in(secured, users, "app") as connection, Publisher(connection) as publisher:
            settings = Bucket(connection, publisher, NS.bucket("SETTINGS"), bytes)
            with pytest.raises(PermissionDenied):
                await settings.put("fetch", b"{}")


@pytest.mark.parametrize("who", ["nobody", "stranger", "wrong inbox"])
async def test_without_the_right_login_nothing_goes(secured: EmbeddedServer, users: Users, who: str) -> None:
    credentials = None if who == "nobody" else Users().credentials("admin")
    with fail_after(30):
        if who == "wrong inbox":
            own = users.credentials("console")
            foreign = type(own)(nkey_seed=own.nkey_seed, inbox_prefix="_INBOX_node")
            async with connect(secured.url, name="test", credentials=foreign) as connection:
                with pytest.raises(PermissionDenied):
                    await connection.failure()
        else:
            with pytest.raises(PermissionDenied, match="refused the login"):
                async with connect(secured.url, name="test", credentials=credentials):
                    pytest.fail("logged in")


async def _every_verb_of_a_bucket(bucket: Bucket[bytes]) -> None:
    await bucket.delete("k")
    revision = await bucket.create("k", b"1")  # reads the delete marker back from the leader
    revision = await bucket.compare_and_set("k", b"2", revision)
    assert [entry.revision for entry in await bucket.entries("k")] == [revision]
    async with bucket.watch() as changes:
        assert [change async for change in _until_synced(changes)] != []
    await bucket.delete("k", revision=revision)
    assert await bucket.get("k") is None


async def _until_synced(changes: AsyncIterator[object]) -> AsyncIterator[object]:
    async for change in changes:
        if isinstance(change, Synced):
            return
        yield change


async def _offer_and_fetch(offering: Connection, fetching: Connection, offers: Publisher) -> None:
    """Offer a slice and fetch it, with the consumer made by the fetching side."""
    spec = fetch_consumer(NS, "mall", "tail")
    await ensure_consumer(fetching, spec)
    await ensure_consumer(offering, sink_consumer(NS, "db"))
    await offers.publish(
        NS.slice_offer("mall", "tail", "shop", f"t1-0-{offering.name}-{fetching.name}"), b"{}", expected_seq=0
    )
    await _pull(fetching, spec.stream, spec.name)


async def _pull(connection: Connection, stream: str, consumer: str) -> None:
    async with Puller(connection, stream, consumer, capacity=1) as puller, create_task_group() as tasks:
        delivery = await puller.receive()
        await delivery.extend()
        await delivery.ack_sync()
        tasks.cancel_scope.cancel()
