"""Secrets are referenced, not written down: a setting holds `env:NAME` or `file:/path`, and the value stays in the
process.

The log's redaction knows every value that is read here (`known_secrets`), so a value that slips into an error message
does not reach the log. A `Secret` shows itself as `***` and cannot be encoded or pickled.
"""

import hmac
import os
import re
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

HIDDEN = "***"
SHORTEST_REDACTED = 6
"""Characters. Hiding every occurrence of a shorter value would black out innocent text."""
LONGEST_FILE = 1 << 16

_SECRET_WORDS = re.compile(
    r"(?:^|[_\-.])(?:password|passwd|pwd|passphrase|secret|token|apikey|api_key|api-key|access_key|private_key|credentials?"
    r"|authorization|auth|seed|nkey|cookie|signature)(?:$|[_\-.])",
    re.IGNORECASE,
)
_SECRET_VALUES = re.compile(
    r"eyJ[\w-]{8,}\.[\w.-]+"  # a JSON web token
    r"|(?:shpat|shpss|shppa|sk|pk|ghp|xox[abp]|Atz[ar])[_|-][\w|-]{12,}"  # what platforms put before tokens
    r"|S[UANOC][A-Z2-7]{56}"  # an nkey seed
    r"|(?=[^\s/]*\d)(?=[^\s/]*[A-Za-z])[A-Za-z0-9+=_-]{32,}"  # long, and of letters and digits both
)
_SECRET_LOOK = re.compile(rf"(?<![\w+=-])(?:{_SECRET_VALUES.pattern})")
_NAMED_VALUE = re.compile(r'"([^"\\]{1,64})"\s*:\s*"((?:[^"\\]|\\.)*)(?:"|$)')
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_known: set[str] = set()


class BadReference(Exception):
    """A reference that is malformed, or that leads nowhere. The message says which and what to do, never a value."""


class Secret:
    """A value that does not show itself. Call `reveal()` where it is used, and nowhere else."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value
        if len(value) >= SHORTEST_REDACTED:
            _known.add(value)

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written down; keep its reference instead")


def known_secrets() -> frozenset[str]:
    """Return every secret value that this process has read so far."""
    return frozenset(_known)


def without_secrets(text: str) -> str:
    """Return foreign text without the secrets that are known here, and without values whose names or looks mark them as
    secret."""
    for secret in _known:
        text = text.replace(secret, HIDDEN)
    return _SECRET_LOOK.sub(HIDDEN, _NAMED_VALUE.sub(_hidden_value, text))


def quoted(said: str) -> str:
    """Return what somebody else said as the end of a reason, without secrets. Empty if nothing was said."""
    return f": {without_secrets(said)}" if said else ""


def _hidden_value(found: re.Match[str]) -> str:
    return f'"{found[1]}":"{HIDDEN}"' if is_secret_name(found[1]) else found[0]


def is_reference(text: str) -> bool:
    """Return whether the text is `env:…` or `file:…`. It may lead nowhere."""
    return text.startswith(("env:", "file:"))


def resolve_reference(reference: str) -> Secret:
    """Return the secret that `env:NAME` or `file:/path` names, without trailing line ends.
    Raises BadReference for a literal, and for a reference whose target is missing, empty or readable by others."""
    kind, _, name = reference.partition(":")
    if kind == "env" and name:
        value = os.environ.get(name, "")
        if not value:
            where = f"process {os.getpid()} on {socket.gethostname()}"  # a person may read it at another machine
            raise BadReference(f"env:{name}: the variable is not set in {where}; set it, and start that process again")
        return Secret(value.rstrip("\r\n"))
    if kind == "file" and name:
        return Secret(_read(Path(name)))
    raise BadReference("a secret is given by reference: write env:NAME or file:/path instead of the value itself")


def _read(path: Path) -> str:
    if not path.is_absolute():
        raise BadReference(f"file:{path}: give the whole path, since nodes start in different folders")
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            raw = file.read(LONGEST_FILE + 1) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise BadReference(f"file:{path}: {error.strerror}; every node that uses the secret needs this file") from error
    if not stat.S_ISREG(status.st_mode):
        raise BadReference(f"file:{path}: not a plain file")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise BadReference(f"file:{path}: others may read it (mode {mode:04o}); run: chmod 600 {path}")
    if len(raw) > LONGEST_FILE:
        raise BadReference(f"file:{path}: larger than {LONGEST_FILE} bytes; that is no secret")
    try:
        value = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise BadReference(f"file:{path}: not UTF-8 text") from None
    if not value:
        raise BadReference(f"file:{path}: empty")
    return value


def resolve_values(values: Mapping[str, str]) -> dict[str, str]:
    """Return an account's values with every reference replaced by its secret. Other values stay as they are.
    Raises BadReference, which names the value, for a reference that leads nowhere or a secret that was written down."""
    resolved = {}
    for name, value in values.items():
        try:
            if is_reference(value):
                resolved[name] = resolve_reference(value).reveal()
            elif looks_secret(name, value):
                raise BadReference("looks like a secret itself; write env:NAME or file:/path in its place")
            else:
                resolved[name] = value
        except BadReference as error:
            raise BadReference(f"{name}: {error}") from None
    return resolved


def is_secret_name(name: str) -> bool:
    """Return whether a value under this name must be hidden wherever it is shown."""
    return bool(_SECRET_WORDS.search(name))


def looks_secret(name: str, value: str) -> bool:
    """Return whether this looks like a secret that somebody wrote down: by its name, or by the look of the value.
    References, URLs and UUIDs never look like one (platforms number their shops with UUIDs)."""
    if not value or is_reference(value):
        return False
    if is_secret_name(name) or value.startswith("-----BEGIN "):
        return True
    return "://" not in value and not _UUID.fullmatch(value) and bool(_SECRET_VALUES.fullmatch(value))
