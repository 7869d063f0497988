"""Answers of a running node, written down so that they can be compared byte for byte with those of another day.

What differs from run to run is replaced by its kind: moments, receipts, cursors, fresh ids, the namespace.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import ClientSession, StreamReader

from streams.link.connection import Connection
from streams.link.frames import Message
from streams.publish.publisher import Publisher
from streams.reads.log import read_log
from tests.support.moments import a_moment
from tests.support.server import stream_state

FOLDER = Path(__file__).parents[1] / "golden" / "answers"
_RANDOM = (
    (re.compile(r"[\w-]+\.[\w-]+\.\d+\.[12]\d{12}\.[0-9a-f]{12}(?:\.[~\w-]+)?"), "<receipt>"),
    (re.compile(r"\b\d*\.[0-9a-f]{12}\b"), "<cursor>"),
    (re.compile(r"submit-[12]\d{12}-\d+"), "<submission>"),
    (re.compile(r"\b[12]\d{12}\b"), "<ms>"),
    (re.compile(r"\b[0-9a-f]{16,}\b"), "<hex>"),
    (re.compile(r"\b20\d\d-\d\d-\d\dT[\d:]+Z"), "<moment>"),
    (re.compile(r"\b202[6-9]\d{4}T\d{6}(?:\.\d{3})?Z"), "<moment>"),
    (re.compile(r"(?<=dead letter )\d+"), "<number>"),
    (re.compile(r'(?<="governor":")[^"]*(?=")'), "<node or none>"),
    (re.compile(r'(?<="state":")(?:owed|waiting)(?=")'), "<owed or waiting>"),
)
_UNTOLD = {"content-length", "date"}
_USUAL = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "content-type": "application/json",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Headers of nearly every answer over HTTP: written down are those that differ."""


class Recorder:
    """Asks at every door, and writes down what was asked and answered. `tokens`: by name, the first one is used."""

    def __init__(
        self, session: ClientSession, connection: Connection, publisher: Publisher, tokens: Mapping[str, str]
    ) -> None:
        self._session = session
        self._connection = connection
        self._publisher = publisher
        self._tokens = tokens
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        """All of it so far."""
        return "\n".join(self._lines) + "\n"

    async def http(
        self,
        method: str,
        path: str,
        body: str = "",
        *,
        token: str = "all",
        headers: Mapping[str, str] = {},
        until_event: bool = False,
    ) -> dict[str, Any]:
        """Send a request; return what it is answered, if that is an object. Of a stream with `until_event` no more than
        the first event is read."""
        shown = {"Content-Type": "application/json", **headers} if body else dict(headers)
        sent = {"Authorization": f"Bearer {self._tokens[token]}", **shown} if token else shown
        async with self._session.request(method, path, data=body or None, headers=sent) as answer:
            content = await _first_event(answer.content) if until_event else await answer.read()
            found = {name.lower(): value for name, value in answer.headers.items() if name.lower() not in _UNTOLD}
        told = {name: value for name, value in found.items() if _USUAL.get(name) != value}
        told |= {name: "(none)" for name in _USUAL if name not in found}
        self._note(f"{token or 'nobody'}: {method} {path}", shown, body.encode(), str(answer.status), told, content)
        return _json(content)

    async def service(self, service: str, endpoint: str, payload: str | bytes = b"") -> dict[str, Any]:
        """Ask an endpoint of a service; return what it is answered."""
        data = payload.encode() if isinstance(payload, str) else payload
        answer = await self._connection.request(self._connection.namespace.api(service, endpoint), data, timeout_s=30)
        self._note(f"{service}.{endpoint}", {}, data, "", answer.headers, answer.payload)
        return _json(answer.payload)

    async def look(self, service: str, endpoint: str, payload: str = "") -> dict[str, Any]:
        """Ask an endpoint of a service without writing anything down."""
        subject = self._connection.namespace.api(service, endpoint)
        return _json((await self._connection.request(subject, payload.encode(), timeout_s=30)).payload)

    async def about(self, service: str) -> None:
        """Have a service say what it is. Nodes of other namespaces on the same server are asked, too."""
        ours: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def hear(answer: Message) -> None:
            is_ours = _json(answer.payload).get("metadata", {}).get("namespace") == self._connection.namespace.name
            if is_ours and not ours.done():
                ours.set_result(answer)

        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(inbox, hear)
        await self._connection.publish_core(f"$SRV.INFO.{service}", reply=inbox)
        answer = await asyncio.wait_for(ours, 30)
        await subscription.unsubscribe()
        self._note(f"INFO of {service}", {}, b"", "", answer.headers, answer.payload)

    async def publish(self, subject: str, payload: str | bytes) -> None:
        """Hand something in by a plain publish, wait until it was taken, and write down the dead letter it became. Its
        sequence depends on what was handed in before, and is left out."""
        name, data = self._connection.namespace.name, payload.encode() if isinstance(payload, str) else payload
        namespace = self._connection.namespace
        dead = (await stream_state(self._connection, namespace.stream("DEAD")))["last_seq"]
        seq = (await self._publisher.publish(f"{name}.submit.{subject}", data)).seq
        while (await stream_state(self._connection, namespace.stream("SUBMIT")))["messages"]:
            await a_moment()
        pattern = namespace.pattern("dead", ">")
        letters = [
            entry async for entry in read_log(self._connection, namespace.stream("DEAD"), pattern) if entry.seq > dead
        ]
        for letter in letters:
            at = letter.subject.removesuffix(f".{seq}")
            told = letter.payload.replace(b'"id":"%d"' % seq, b'"id":"<seq>"')
            self._note(f"submit.{subject}", {}, data, f"{at}.<seq>", {}, told)
        if not letters:
            self._note(f"submit.{subject}", {}, data, "taken", {}, b"")

    def _note(
        self, title: str, sent: Mapping[str, str], asked: bytes, status: str, told: Mapping[str, str], answer: bytes
    ) -> None:
        lines = [
            f"## {title}",
            *(f"> {name}: {value}" for name, value in sorted(sent.items())),
            *([_shown(asked)] if asked else []),
            *([f"= {status}"] if status else []),
            *(f"< {name}: {value}" for name, value in sorted(told.items())),
            _shown(answer),
            "",
        ]
        self._lines += [self._plain(line) for line in lines]

    def _plain(self, text: str) -> str:
        text = text.replace(self._connection.namespace.name, "<namespace>")
        for pattern, kind in _RANDOM:
            text = pattern.sub(kind, text)
        return text


async def _first_event(stream: StreamReader) -> bytes:
    """Return what comes until the end of the first event."""
    content = b""
    while b"event:" not in content or not content.endswith(b"\n\n"):
        content += await stream.readline()
    return content


def _json(content: bytes) -> dict[str, Any]:
    try:
        told = json.loads(content)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _shown(content: bytes) -> str:
    text = content.decode("utf-8", "backslashreplace")
    return text if len(text) < 20_000 else f"{text[:200]} … {len(text)} signs"


def check(name: str, text: str) -> None:
    """Compare with the golden file."""
    file = FOLDER / f"{name}.txt"
    if os.environ.get("PENSTOCK_GOLDEN") == "write":
        file.write_text(text)
    changes = [*unified_diff(file.read_text().splitlines(), text.splitlines(), file.name, "now", lineterm="", n=4)]
    if changes:
        pytest.fail("\n".join(changes), pytrace=False)


async def until(asker: Recorder, batch: str, state: str = "done") -> None:
    """Wait until an instance is in a state. Nothing of that is written down."""
    with anyio.fail_after(60):
        while (await asker.look("batch", "show", json.dumps({"id": batch})))["state"] != state:
            await a_moment()
