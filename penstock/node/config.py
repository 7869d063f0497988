"""A process's configuration: which server, which folder, which duties. Read once, at the start.

From weak to strong: defaults, the TOML file of `--config`, `PENSTOCK_<NAME>` variables, flags. The settings of the
fetch of orders are not here: they are live and the same for every node (actors/fetch/rules/settings.py).

Secrets (password, token, nkey seed) are references, `env:NAME` or `file:/path`, resolved when the node connects.
"""

import difflib
import hashlib
import re
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from actors.batch.rules.callbacks import parse_allowed
from actors.runtime.rules.setting_values import BadSetting, read_duration, shown
from actors.runtime.secrets import BadReference, is_reference, is_secret_name, looks_secret, resolve_reference
from penstock.errors import UsageError
from penstock.node.logs import Form, Level
from streams.subjects import TOKEN

__all__ = ["ROLES", "Config", "is_loopback", "load_config", "node_name", "origin_of"]

PREFIX = "PENSTOCK_"
ENVIRONMENT = "the environment"
ROLES = ("allocator", "fetcher", "sink", "monitor", "timer", "worker", "desk", "gateway", "conductor", "executor")
"""The duties that a node can have. By default it has all of them."""
SCHEMES = ("nats", "tls", "ws", "wss")
LISTS = ("roles", "labels", "callback_hosts", "mail_to")
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
Token = Annotated[str, Meta(pattern=rf"^(?:{TOKEN.pattern})?$", description="1 to 64 of A-Z a-z 0-9 _ -")]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process's configuration. Every field is `PENSTOCK_<FIELD>` and a key of the file, and most are flags. A field
    that ends with `_s` takes a number of seconds, and a text with its unit (`90s`, `5m`)."""

    nats: str = ""
    """The server's address, or several with commas between. Empty: an embedded server in the data folder."""
    data: str = ""
    """The folder of the embedded server and the SQLite database. Empty: the system's folder for a user's data."""
    state: str = ""
    """The folder of the node's memory of its server. Empty: a folder beside the data folder, of the same name and
    `-state`. A restore of an older copy of the data then does not restore an older memory."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """The embedded server's port on 127.0.0.1. 0: a free one."""
    namespace: Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,32}$", description="1 to 32 of a-z 0-9 _ -")] = "penstock"
    """First token of every subject, so that several installations can share a server."""
    name: Token = ""
    """The node's name, unique in the cluster. Empty: made of host and process, different at each start."""
    roles: tuple[Token, ...] = ()
    """The node's duties. Empty: all."""
    zone: Token = ""
    """The node's zone. Work that is bound to a zone stays in it."""
    hub: Token = ""
    """The JetStream domain that joins zones on servers of their own. Empty: all zones are on one cluster."""
    zone_lease_s: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    """Seconds that a zone works on without the hub, and is silent before the others take it for dead."""
    labels: tuple[Token, ...] = ()
    """The labels to which sources can be pinned."""
    connect_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    """Seconds to wait for the server at the start. After the first connect a node waits without limit."""
    drain_s: Annotated[float, Meta(ge=0, le=3600)] = 20.0
    """Seconds that a stopping node gives to work in hand. Below the 30 s after which Kubernetes and others kill."""
    profile: Literal["safe", "fast"] = "fast"
    """Acknowledged data survives a killed process (`fast`), and a power cut if the server syncs always (`safe`)."""
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """Copies of each stream and bucket: 3 on a cluster of three servers."""
    user: str = ""
    password: str = ""
    token: str = ""
    nkey_seed: str = ""
    creds_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    inbox_prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="one subject token")] = "_INBOX"
    """The prefix of this user's reply subjects. On a shared server each user needs its own."""
    sink: str = ""
    """The sink of orders: sqlite:///FILE, postgresql://USER@HOST/DATABASE, `none`, or env:NAME, file:/path of such a
    URL. Empty: the app's own sinks, else a SQLite file in the data folder."""
    history: bool = False
    """Keep each change of an order in a table of its own beside the newest version."""
    app: str = ""
    """The Python module with the user's own code (`@penstock.sink`)."""
    metrics: str = ""
    """The address on which the node serves its figures to Prometheus: HOST:PORT. Empty: none."""
    http: str = "127.0.0.1:7070"
    """The address of the HTTP gateway: HOST:PORT. Empty or `off`: none. An address that other machines reach needs a
    certificate or a proxy, and tokens."""
    http_cert: str = ""
    http_key: str = ""
    """The gateway's certificate chain and key, as PEM files."""
    behind_proxy: bool = False
    """A reverse proxy stands before the gateway. It ends TLS, and the gateway trusts its X-Forwarded-For."""
    callback_hosts: tuple[str, ...] = ()
    """The hosts that callbacks of batches may call: host names, `*.` and a name, `*`, HOST:PORT, addresses, and
    networks such as 10.0.0.0/8, into which those names may lead. Empty: none. The same on every node."""
    callback_secret: str = ""
    """The secret that signs callbacks and requests to external programs, 16 characters or more."""
    batch_archive: str = ""
    """A folder that exists, in which batches are kept as files before they are removed. Empty: they are not kept. The
    same on all nodes with the role `conductor`, and best one folder that all of them reach."""
    mail_to: tuple[str, ...] = ()
    """The addresses to which notices are mailed. The same on all nodes with the role `monitor` or `sink`."""
    mail_from: str = ""
    """The sender. Empty: the first of `mail_to`."""
    smtp: str = ""
    """The server that takes mail: HOST:PORT. TLS from the start on port 465, and by STARTTLS on others."""
    smtp_user: str = ""
    smtp_password: str = ""
    smtp_ca: str = ""
    """The authorities that its certificate may be from, as a PEM file. Empty: those of the system."""
    monitor: str = ""
    """The server's monitoring address (http://host:8222). Nodes and `penstock doctor` read the health of its store
    there. Empty: only an embedded server's own is read."""
    log_level: Level = "auto"
    """`auto`: warnings on a terminal, `info` for machines."""
    log_form: Form = "auto"
    """`json` for machines, `text` for people. `auto`: text on a terminal."""

    def __post_init__(self) -> None:
        _check_nats(self.nats)
        _check_monitor(self.monitor)
        _check_http(self)
        for role in self.roles:
            if role not in ROLES:
                raise ValueError(f"roles: {role!r} is no role{_nearest(role, ROLES)}")
        for name in ("password", "token", "nkey_seed", "callback_secret", "smtp_password"):
            value = getattr(self, name)
            if value and not is_reference(value):
                raise ValueError(
                    f"{name}: write env:NAME or file:/path in its place; a secret is never written down here"
                )
        if self.hub and not self.zone:
            raise ValueError(f"hub: {self.hub!r} joins zones, and this node has none; set zone, too")
        _check_callbacks(self)
        _check_mail(self)

    @property
    def is_embedded(self) -> bool:
        return not self.nats

    def http_address(self) -> tuple[str, int] | None:
        """Return the gateway's host and port, None if there is none. An IPv6 host has no brackets here."""
        if self.http in ("", "off"):
            return None
        host, _, port = self.http.rpartition(":")
        return host.strip("[]"), int(port)

    def has_role(self, role: str) -> bool:
        """True if the node has this role. Every node has the empty role."""
        return not role or not self.roles or role in self.roles

    def data_folder(self) -> Path:
        """Return the data folder's path. It is not made."""
        if self.data:
            return Path(self.data).expanduser().resolve()
        from platformdirs import user_data_path  # not needed by most, and not free

        return user_data_path("penstock", appauthor=False)

    def memory_file(self) -> Path:
        """Return the file of the node's memory of this server and namespace. It is not made."""
        data = self.data_folder()
        folder = Path(self.state).expanduser().resolve() if self.state else data.with_name(f"{data.name}-state")
        server = hashlib.sha256(f"{self.nats or 'embedded'}/{self.namespace}".encode()).hexdigest()[:16]
        return folder / f"{server}.json"

    def sink_url(self) -> str:
        """Return the sink's URL with its reference resolved. Raises UsageError for a password in plain text."""
        if is_reference(self.sink):
            return self.secret("sink")
        if urlsplit(self.sink).password:
            raise UsageError(
                "sink: a password is never written down here; put the whole URL behind env:NAME or file:/path"
            )
        return self.sink

    def secret(self, name: str) -> str:
        """Return the value that a field's reference names, empty if it has none. Raises UsageError naming the field."""
        reference = getattr(self, name)
        try:
            return resolve_reference(reference).reveal() if reference else ""
        except BadReference as error:
            raise UsageError(f"{name}: {error}") from error

    def shown(self) -> dict[str, object]:
        """Return every field in plain values. Possible secrets are hidden."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return {name: "***" if _is_hidden(name, value) else value for name, value in plain.items()}

    def with_changes(self, **changes: object) -> Self:
        return msgspec.structs.replace(self, **changes)


def load_config(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object | None] | None = None,
) -> Config:
    """Return the configuration. A flag that is None was not given. Raises UsageError that names the wrong value, its
    place, and the values that are allowed."""
    values: dict[str, object] = {}
    for place, found in _places(file, environment, flags or {}):
        for name, value in found.items():
            where = f"{PREFIX}{name.upper()}" if place == ENVIRONMENT else f"{place}: {name}"
            values[name] = _converted(where, name, value)
    try:
        return Config(**values)  # type: ignore[arg-type]  # each value was converted to its field's type
    except ValueError as error:
        raise UsageError(str(error)) from error


def origin_of(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object | None]) -> dict[str, str]:
    """Return the origin of each field that was given. The others have their defaults."""
    return {name: place for place, found in _places(file, environment, flags) for name in found}


def node_name(config: Config, *, host: str, process_id: int, chance: str) -> str:
    """Return the node's name: the given one, or a unique one of host, process and chance."""
    own = re.sub(r"[^A-Za-z0-9_-]", "-", host.partition(".")[0])[:40].strip("-") or "node"
    return config.name or f"{own}-{process_id}-{chance}"


def _places(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object | None]
) -> list[tuple[str, dict[str, object]]]:
    return [
        (str(file), _from_file(file) if file else {}),
        (ENVIRONMENT, _from_environment(environment)),
        ("the command line", {name: value for name, value in flags.items() if value is not None}),
    ]


def _from_file(file: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file}: not TOML: {error}") from error
    for name, value in values.items():
        if name not in Config.__struct_fields__:
            raise UsageError(f"{file}: no such key: {name!r}{_nearest(name, Config.__struct_fields__)}")
        if isinstance(value, str) and looks_secret(name, value):
            raise UsageError(f"{file}: {name}: looks like a secret; write env:NAME or file:/path in its place")
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Take PENSTOCK_<FIELD>. Other names of that prefix are the user's (a shop's key, say), unless close to a field."""
    values: dict[str, object] = {}
    for variable, text in environment.items():
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or not text:
            continue
        if name in Config.__struct_fields__:
            values[name] = text
        elif near := difflib.get_close_matches(name, Config.__struct_fields__, 1, cutoff=0.8):
            raise UsageError(f"{variable}: no such variable; did you mean {PREFIX}{near[0].upper()}?")
    return values


def _converted(where: str, name: str, value: object) -> Any:
    """Return the value as its field's type. Text from the environment or a flag may stand for numbers and lists."""
    field = next((field for field in msgspec.structs.fields(Config) if field.name == name), None)
    if field is None:
        raise UsageError(f"{where}: no such key{_nearest(name, Config.__struct_fields__)}")
    if name in LISTS and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if name.endswith("_s") and isinstance(value, str) and not _NUMBER.fullmatch(value):
        try:
            value = read_duration(name, value) / 1000
        except BadSetting as error:
            raise UsageError(f"{where}: {shown(error.value)} {error.why}; {error.do}") from error
    try:
        return msgspec.convert(value, field.type, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        known = get_args(field.type)
        if isinstance(value, str) and known and all(isinstance(one, str) for one in known):
            raise UsageError(f"{where}: {value[:80]!a} is not known{_nearest(value, known)}") from error
        forms = [each.description for each in getattr(field.type, "__metadata__", ()) if each.pattern]
        if isinstance(value, str) and forms:
            raise UsageError(f"{where}: {value[:80]!r} does not fit; use {forms[0]}") from error
        given = f": {value[:80]!a}" if isinstance(value, str) else ""
        raise UsageError(f"{where}: {error}{given}") from error


def _check_nats(address: str) -> None:
    for one in address.split(",") if address else ():
        parts = urlsplit(one if "://" in one else f"nats://{one}")
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise ValueError(f"nats: {_without_user(one)!r} is no server's address; write nats://host:4222")
        if parts.username or parts.password:
            raise ValueError(
                "nats: no user or password in the address; set user, and password as env:NAME or file:/path"
            )
        try:
            _ = parts.port
        except ValueError:
            raise ValueError(f"nats: {one!r}: the port is no number from 0 to 65535") from None


def _check_mail(config: Config) -> None:
    for name, address in (*(("mail_to", one) for one in config.mail_to), ("mail_from", config.mail_from)):
        if (address or name == "mail_to") and not _MAIL.fullmatch(address):
            raise ValueError(f"{name}: {address!r} is no mail address; write name@example.com, and no name beside it")
    host, _, port = config.smtp.rpartition(":")
    if config.smtp and (not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) <= 65_535):
        raise ValueError(f"smtp: {config.smtp!r} is no address; write HOST:PORT, as in smtp.example.com:587")
    if bool(config.smtp) != bool(config.mail_to):
        given, missing = ("smtp", "mail_to") if config.smtp else ("mail_to", "smtp")
        raise ValueError(f"{given}: nothing is mailed without {missing}; set that too")
    if bool(config.smtp_user) != bool(config.smtp_password):
        given, missing = ("smtp_user", "smtp_password") if config.smtp_user else ("smtp_password", "smtp_user")
        raise ValueError(f"{given}: a login has a name and a password; set {missing} too")


def _check_monitor(address: str) -> None:
    parts = urlsplit(address)
    if address and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username):
        raise ValueError(f"monitor: {_without_user(address)!r} is no monitoring address; write http://host:8222")


def _check_http(config: Config) -> None:
    host, colon, port = config.http.rpartition(":")
    if config.http not in ("", "off"):
        if not colon or not _HOST.fullmatch(host) or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"http: {config.http!r} is no address; write HOST:PORT, as in 127.0.0.1:7070, or off")
        if not is_loopback(host.strip("[]")) and not config.http_cert and not config.behind_proxy:
            raise ValueError(
                f"http: {config.http} can be reached from other machines, and tokens would travel unencrypted; set"
                " http_cert and http_key, or behind_proxy where a proxy ends TLS"
            )
    if bool(config.http_cert) != bool(config.http_key):
        raise ValueError("http_cert, http_key: one without the other; set both, or neither")


def _check_callbacks(config: Config) -> None:
    try:
        parse_allowed(config.callback_hosts)
    except ValueError as error:
        raise ValueError(f"callback_hosts: {error}") from None
    if config.callback_hosts and not config.callback_secret:
        raise ValueError("callback_hosts: calls are signed; set callback_secret too")


def is_loopback(host: str) -> bool:
    """True if only this machine reaches the host's address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_user(address: str) -> str:
    return re.sub(r"//[^/]*@", "//***@", address)


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def _is_hidden(name: str, value: object) -> bool:
    """True for a secret's value that is no reference. References are shown."""
    return is_secret_name(name) and bool(value) and not is_reference(str(value))
