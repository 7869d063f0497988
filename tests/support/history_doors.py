"""The doors through which the callers of a history come: HTTP in both forms, the service, the client, a publish.

Each says in the same few words what it was told. What was certainly never sent is `not done`; whatever got no answer is
`unknown`.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from aiohttp import ClientConnectorError, ClientError, ClientSession

from actors.jobs.rules.job_answers import Added
from penstock.errors import NotAccepted, PenstockError, Stale, Unavailable
from penstock.sdk.client import Client
from penstock.sdk.client_adds import new_job
from streams.errors import Disconnected, NoStream, Refused, StreamError
from streams.link.connection import Connection
from streams.messages.jobs import NewJob
from streams.publish.publisher import Publisher
from tests.support.job_history import Told

TTR_MS = 1_000
ATTEMPTS = 1_000
"""So many that nothing becomes a dead letter by itself."""


class Wish(NamedTuple):
    """What is to be added. `nonce`: of the caller, the same in each repeat."""

    topic: str
    id: str
    token: str
    delay_ms: int = 0
    on_same: Any = "keep"


class Held(NamedTuple):
    """What was handed out. `attempt` is 0 and `until_ms` the earliest end where the door does not tell."""

    id: str
    token: str
    attempt: int
    until_ms: int
    receipt: str


class Door(Protocol):
    """What every door can, and in which ways it settles (`hows`)."""

    name: str
    hows: tuple[str, ...]

    async def add(self, wish: Wish) -> Told: ...

    async def take(self, topic: str, most: int, wait_ms: int) -> list[Held]: ...

    async def settle(self, how: str, held: Held, **asked: int) -> tuple[Told, int]:
        """Return what was told, and until when it is held."""
        ...

    async def delete(self, topic: str, job_id: str) -> Told: ...

    async def peek(self, topic: str, job_id: str) -> tuple[Told, str]:
        """Return what was told, and the token of what is there and not over."""
        ...


def told_by_status(status: int) -> Told:
    """Return what an HTTP status, or the code of a service's error, says."""
    if status in (200, 201):
        return "ok"
    return "not found" if status == 404 else "unknown" if status in (500, 502, 504) else "not done"


def told_by_code(code: str) -> Told:
    # nothing is remembered here: who is told `over` is told that there is one
    codes: dict[str, Told] = {"ok": "ok", "exists": "kept", "over": "kept", "stale": "stale", "not_found": "not found"}
    return codes.get(code, "unknown" if code in ("unknown", "500") else "not done")


def body_of(wish: Wish) -> dict[str, str]:
    return {"token": wish.token}


class Answer(NamedTuple):
    told: Told
    body: Any


class HttpDoor:
    """What both forms of HTTP share. Asks any of the gateways, each time another."""

    def __init__(self, name: str, session: ClientSession, urls: Sequence[str], chance: random.Random) -> None:
        self.name = name
        self._session = session
        self._urls = urls
        self._chance = chance

    async def _ask(self, method: str, path: str, body: object = None, *, key: str = "") -> Answer:
        url = self._chance.choice(self._urls) + path
        headers = {"Idempotency-Key": key} if key else {}
        try:
            async with self._session.request(method, url, json=body, headers=headers) as response:
                try:
                    told = json.loads(await response.read())
                except ValueError:
                    told = None
                return Answer(told_by_status(response.status), told)
        except ClientConnectorError:  # the library repeats a DELETE by itself when the link breaks under the first try
            return Answer("unknown" if method == "DELETE" else "not done", None)
        except (ClientError, OSError, TimeoutError):
            return Answer("unknown", None)


class RestDoor(HttpDoor):
    hows: tuple[str, ...] = ("finish", "touch", "release", "bury")

    async def add(self, wish: Wish) -> Told:
        asked = {
            "id": wish.id,
            "body": body_of(wish),
            "delay_ms": wish.delay_ms,
            "ttr_ms": TTR_MS,
            "attempts": ATTEMPTS,
            "on_same": wish.on_same,
        }
        answer = await self._ask("POST", f"/v1/topics/{wish.topic}/jobs", asked, key=wish.token)
        return "kept" if answer.body and answer.body.get("code") in ("exists", "over") else answer.told

    async def take(self, topic: str, most: int, wait_ms: int) -> list[Held]:
        answer = await self._ask("POST", f"/v1/topics/{topic}/reserve", {"most": most, "wait_ms": wait_ms})
        found = answer.body["jobs"] if answer.told == "ok" else []
        return [Held(job["id"], job["body"]["token"], job["attempt"], job["until_ms"], job["receipt"]) for job in found]

    async def settle(self, how: str, held: Held, **asked: int) -> tuple[Told, int]:
        answer = await self._ask("POST", f"/v1/receipts/{how}", {"receipts": [held.receipt], **asked})
        if answer.told != "ok":
            return answer.told, 0
        [one] = answer.body["answers"]
        return told_by_code(one["code"]), one.get("until_ms", 0)

    async def delete(self, topic: str, job_id: str) -> Told:
        return (await self._ask("DELETE", f"/v1/topics/{topic}/jobs/{job_id}")).told

    async def peek(self, topic: str, job_id: str) -> tuple[Told, str]:
        answer = await self._ask("GET", f"/v1/topics/{topic}/jobs/{job_id}")
        if answer.told != "ok" or answer.body["state"] == "done":
            return ("not found" if answer.told == "ok" else answer.told), ""
        return "ok", answer.body["body"]["token"]

    async def finish_all(self, held: Sequence[Held]) -> list[Told]:
        """Finish a list by one call."""
        answer = await self._ask("POST", "/v1/receipts/finish", {"receipts": [one.receipt for one in held]})
        if answer.told != "ok":
            return [answer.told for _ in held]
        return [told_by_code(one["code"]) for one in answer.body["answers"]]


class QueueDoor(HttpDoor):
    """The protocol of four commands. It knows no receipts, and tells no attempts; it finishes by the id."""

    hows: tuple[str, ...] = ()

    async def _command(self, *, key: str = "", **asked: object) -> Answer:
        answer = await self._ask("POST", "/queue", asked, key=key)
        if answer.told != "ok" or answer.body["success"]:
            return answer
        error = str(answer.body["error"])
        code = error.partition(":")[0]
        if code == "id" and "another body" in error:
            code = "exists"
        return Answer(told_by_code(code), answer.body)

    async def add(self, wish: Wish) -> Told:
        body = json.dumps(body_of(wish))
        return (
            await self._command(
                key=wish.token,
                command="add",
                topic=wish.topic,
                id=wish.id,
                delay=wish.delay_ms / 1000,
                ttr=1,
                body=body,
            )
        ).told

    async def take(self, topic: str, most: int, wait_ms: int) -> list[Held]:
        answer = await self._command(command="pop", topic=topic, timeout=wait_ms / 1000)
        if answer.told != "ok" or "id" not in answer.body:
            return []
        token = json.loads(answer.body["value"])["token"]
        return [Held(answer.body["id"], token, 0, 0, "")]

    async def settle(self, how: str, held: Held, **asked: int) -> tuple[Told, int]:
        return (await self._command(command="finish", id=held.id)).told, 0

    async def delete(self, topic: str, job_id: str) -> Told:
        return (await self._command(command="delete", topic=topic, id=job_id)).told

    async def peek(self, topic: str, job_id: str) -> tuple[Told, str]:
        return "unknown", ""


class ServiceDoor:
    """The service, asked by hand: one question, one answer, nothing asked twice."""

    hows: tuple[str, ...] = ("finish", "touch", "release", "bury")

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self._connection = connection

    async def _ask(self, endpoint: str, asked: Mapping[str, object], *, wait_ms: int = 0) -> Answer:
        subject = self._connection.namespace.api("jobs", endpoint)
        try:
            answer = await self._connection.request(subject, msgspec.json.encode(asked), timeout_s=5.0 + wait_ms / 1000)
        except (Disconnected, NoStream):
            return Answer("not done", None)
        except StreamError:
            return Answer("unknown", None)
        code, body = answer.headers.get("Nats-Service-Error-Code"), msgspec.json.decode(answer.payload)
        if code is None:
            return Answer("ok", body)
        named = str(body["error"].get("code", code))
        return Answer("unknown" if code in ("500", "504") else told_by_code(named), body)

    async def add(self, wish: Wish) -> Told:
        asked: dict[str, object] = {
            "topic": wish.topic,
            "id": wish.id,
            "body": body_of(wish),
            "delay_ms": wish.delay_ms,
            "ttr_ms": TTR_MS,
            "attempts": ATTEMPTS,
            "on_same": wish.on_same,
            "nonce": wish.token,
        }
        answer = await self._ask("add", asked)
        if answer.told == "ok" and not answer.body["is_new"]:
            return "ok" if answer.body["is_same_body"] else "kept"
        return answer.told

    async def take(self, topic: str, most: int, wait_ms: int) -> list[Held]:
        answer = await self._ask("reserve", {"topic": topic, "most": most, "wait_ms": wait_ms}, wait_ms=wait_ms)
        found = answer.body["jobs"] if answer.told == "ok" else []
        return [Held(job["id"], job["body"]["token"], job["attempt"], job["until_ms"], job["receipt"]) for job in found]

    async def settle(self, how: str, held: Held, **asked: int) -> tuple[Told, int]:
        answer = await self._ask(how, {"receipt": held.receipt, **asked})
        return answer.told, answer.body.get("until_ms", 0) if answer.told == "ok" else 0

    async def delete(self, topic: str, job_id: str) -> Told:
        return (await self._ask("delete", {"topic": topic, "id": job_id})).told

    async def peek(self, topic: str, job_id: str) -> tuple[Told, str]:
        answer = await self._ask("peek", {"topic": topic, "id": job_id})
        if answer.told != "ok" or answer.body["state"] == "done":
            return ("not found" if answer.told == "ok" else answer.told), ""
        return "ok", answer.body["body"]["token"]


class ClientDoor:
    """The Python client, with its repeats, a list at a time. It does not tell until when a touch holds."""

    hows: tuple[str, ...] = ("finish", "release", "bury")

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self._jobs = client.jobs

    async def add(self, wish: Wish) -> Told:
        job = new_job(
            wish.topic,
            body_of(wish),
            id=wish.id,
            delay=wish.delay_ms / 1000,
            ttr=TTR_MS / 1000,
            attempts=ATTEMPTS,
            on_same=wish.on_same,
        )
        return (await self._add([job]))[0]

    async def _add(self, jobs: Sequence[NewJob]) -> list[Told]:
        try:
            answers = await self._jobs.add_many(jobs)
        except PenstockError as error:
            return [_told_by_error(error) for _ in jobs]
        return [
            "kept"
            if isinstance(answer, Added) and not answer.is_new and not answer.is_same_body
            else told_by_code(answer.code)
            for answer in answers
        ]

    async def add_all(self, topic: str, tokens: Sequence[str]) -> list[Told]:
        """Add jobs of ids of their own, which are their tokens."""
        return await self._add(
            [new_job(topic, {"token": token}, id=token, ttr=TTR_MS / 1000, attempts=ATTEMPTS) for token in tokens]
        )

    async def take(self, topic: str, most: int, wait_ms: int) -> list[Held]:
        try:
            found = await self._jobs.reserve_many(topic, most=most, wait=wait_ms / 1000)
        except PenstockError:
            return []
        return [Held(job.id, job.body["token"], job.attempt, job._reserved.until_ms, job.receipt) for job in found]

    async def settle(self, how: str, held: Held, **asked: int) -> tuple[Told, int]:
        try:
            if how == "release":
                await self._jobs.release(held.receipt, delay=asked["delay_ms"] / 1000)
            elif how == "bury":
                await self._jobs.bury(held.receipt)
            else:
                [answer] = await self._jobs.finish_many([held.receipt])
                return told_by_code(answer.code), 0
        except PenstockError as error:
            return _told_by_error(error), 0
        return "ok", 0

    async def delete(self, topic: str, job_id: str) -> Told:
        try:
            return "ok" if await self._jobs.delete(job_id, topic) else "not found"
        except PenstockError as error:
            return _told_by_error(error)

    async def peek(self, topic: str, job_id: str) -> tuple[Told, str]:
        try:
            found = await self._jobs.peek(topic, job_id)
        except PenstockError as error:
            return _told_by_error(error), ""
        if found is None or found.state == "done":
            return "not found", ""
        return "ok", msgspec.json.decode(found.body)["token"]


def _told_by_error(error: PenstockError) -> Told:
    match error:
        case Stale():
            return "stale"
        case NotAccepted():
            return told_by_code(error.code)
        case Unavailable():
            return "not done"
        case _:
            return "unknown"


class PublishDoor(ClientDoor):
    """Adds by a plain publish, of which only the server says something: it is kept, and added in time. All else by the
    client."""

    def __init__(self, name: str, client: Client, connection: Connection, publisher: Publisher) -> None:
        super().__init__(name, client)
        self._namespace = connection.namespace
        self._publisher = publisher

    async def add(self, wish: Wish) -> Told:
        asked: dict[str, object] = {
            "id": wish.id,
            "body": body_of(wish),
            "delay_ms": wish.delay_ms,
            "ttr_ms": TTR_MS,
            "attempts": ATTEMPTS,
            "nonce": wish.token,
        }
        payload = msgspec.json.encode(asked)
        try:
            await self._publisher.publish(self._namespace.submit_job(wish.topic), payload, message_id=wish.token)
        except (Refused, Disconnected):
            return "not done"
        except StreamError:
            return "unknown"
        return "ok" if wish.id == wish.token else "unknown"  # of an id of its own it is known that nobody was there
