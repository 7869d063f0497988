"""Log set-up: one line a record, JSON for machines and a readable form on a terminal.

One `write` to the file descriptor writes a line. Nothing is buffered, so a full disk or a closed stderr costs the line
and nothing else. Both forms escape control characters, so that no text from outside can forge a line. Secrets are
hidden by value (all that this process has resolved) and by the name of the fact.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

import msgspec

from actors.runtime.logs import FACTS, current_actor
from actors.runtime.secrets import HIDDEN, is_secret_name, known_secrets

Form = Literal["auto", "json", "text"]
Level = Literal["auto", "debug", "info", "warning", "error"]

STDERR = 2
LONGEST_TEXT = 8_192
"""Characters of one fact or trace. A platform's error page does not belong in a log."""

_encode = msgspec.json.Encoder(enc_hook=str).encode
_hides = lru_cache(4096)(is_secret_name)
_LETTERS = {"debug": "D", "info": " ", "warning": "W", "error": "E", "critical": "E"}


class DescriptorHandler(logging.Handler):
    """Writes each record with one system call. What cannot be written is counted in `lost`, never raised."""

    def __init__(self, descriptor: int, form: Callable[[logging.LogRecord], str]) -> None:
        super().__init__()
        self.lost = 0
        self._descriptor = descriptor
        self._form = form

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._form(record).encode("utf-8", "backslashreplace") + b"\n"
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            self.lost += 1  # the log's disk is full, or its reader is gone: the service goes on
        except Exception as error:  # a value that cannot be shown must not stop the work that logged it
            self.lost += 1
            self._say(f'{{"level":"error","event":"log.unformed","error":"{type(error).__name__}"}}\n')

    def _say(self, line: str) -> None:
        try:
            os.write(self._descriptor, line.encode())
        except OSError:
            self.lost += 1


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    """Return a record's facts, secrets hidden: those beside its event, the actor, and the trace, if any."""
    found = getattr(record, FACTS, {})
    facts = {str(name): _shown(str(name), value) for name, value in found.items()} if isinstance(found, Mapping) else {}
    actor = current_actor.get()
    if actor and "actor" not in facts:
        facts["actor"] = actor
    if record.exc_info and record.exc_info[1] is not None:
        facts["trace"] = _hide(logging.Formatter().formatException(record.exc_info))[-LONGEST_TEXT:]
    return facts


def _shown(name: str, value: object) -> object:
    match value:
        case None | bool() | int() | float():
            return value  # a lease's token is a number, and no secret
        case _ if _hides(name):
            return HIDDEN
        case str():
            return _hide(value)[:LONGEST_TEXT]
        case Mapping():
            return {str(key): _shown(str(key), one) for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_shown(name, one) for one in value]
        case _:
            return _hide(str(value))[:LONGEST_TEXT]


def _hide(text: str) -> str:
    """Return the text without secrets, and without lone surrogates, which no encoder takes."""
    for secret in known_secrets():
        if secret in text:
            text = text.replace(secret, HIDDEN)
    return text if text.isprintable() else text.encode("utf-8", "backslashreplace").decode()


def _escaped(line: str) -> str:
    """Return JSON in which DEL, C1 and direction marks are escaped too. The encoder leaves them."""
    if line.isprintable():
        return line
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in line)


def json_line(record: logging.LogRecord) -> str:
    """Return one JSON object: at, level, event, logger, then the facts (`_` before one that has such a name).
    JSON escapes every control character."""
    line: dict[str, object] = {
        "at": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "event": _hide(record.getMessage())[:LONGEST_TEXT],
        "logger": record.name,
    }
    facts = {f"_{name}" if name in line else name: value for name, value in facts_of(record).items()}
    return _escaped(_encode(line | facts).decode())


def text_line(record: logging.LogRecord) -> str:
    """Return a line for people: time, level's letter, event, facts. A trace follows on its own indented lines."""
    facts = facts_of(record)
    trace = facts.pop("trace", None)
    told = " ".join(f"{name}={_visible(_plain(value))}" for name, value in facts.items())
    level = _LETTERS.get(record.levelname.lower(), "?")
    head = f"{_time(record).astimezone():%H:%M:%S.%f}"[:-3]
    event = _visible(_hide(record.getMessage())[:LONGEST_TEXT])
    line = f"{head} {level} {event:<28} {told}".rstrip()
    return line if trace is None else "\n    ".join([line, *(_visible(part) for part in str(trace).split("\n"))])


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


def _visible(text: str) -> str:
    """Return the text with whatever is not printable (control characters, direction marks, line ends) escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def is_for_people(form: Form, *, descriptor: int = STDERR) -> bool:
    """Return whether the log is read by a person."""
    return form == "text" or (form == "auto" and _is_terminal(descriptor))


def set_up_logs(level: Level = "auto", form: Form = "auto", *, descriptor: int = STDERR) -> DescriptorHandler:
    """Send every logger's records to `descriptor`, in place of any earlier set-up, and return the handler. `auto` has
    warnings for people, and what happened for machines too."""
    is_terminal = is_for_people(form, descriptor=descriptor)
    if level == "auto":
        level = "warning" if is_terminal else "info"
    handler = DescriptorHandler(descriptor, text_line if is_terminal else json_line)
    logging.raiseExceptions = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("asyncio", "aiohttp", "nats", "sqlalchemy"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    return handler


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
