"""The delay queue's protocol as it was published: four JSON commands to one address, `POST /queue`.

    {"command": "add", "topic": "orders", "id": "orders-1", "delay": 1800, "ttr": 60, "body": "{\\"order\\": 1}"}
    {"command": "pop", "topic": "orders", "timeout": 20}
    {"command": "finish", "id": "orders-1"}
    {"command": "delete", "id": "orders-1"}

Each answer is `{"success": …, "error": …, "id": …, "value": …}`, without the fields that do not apply. `delay`, `ttr`
(also `TTR`) and `timeout` are seconds. A `pop` with nothing ready succeeds without an id. `timeout`, an extension of
Penstock, makes it wait. `finish` takes only the id, and settles the reservation that `pop` made.

Status: 200 if the command was understood, also when it was refused (`success` is false, `error` says why). 4xx if the
request is not HTTP or not JSON, is too large or not allowed. 429 and 5xx if it is worth repeating unchanged. Every
answer has this one shape, whatever its status (replies.py). The body is read as JSON under any content type. Origin and
Sec-Fetch-Site show whether a page of another site sent it.

`body` is JSON text: a string that holds JSON. If it holds an object or a list it is stored as that, so that every other
interface sees an object or a list. Any other string is stored as a string. `value` is the same text, to the letter.
"""

from typing import Annotated, assert_never

import msgspec
from msgspec import Meta, Raw, Struct

from actors.jobs.replies import ADVICE
from actors.jobs.rules.job_rules import BadJob
from penstock.api.forms.jobs import LONGEST_WAIT_MS
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded
from penstock.api.http.problems import RefusedRequest
from penstock.api.http.replies import Reply, words
from penstock.api.http.routes.jobs import audit, check_body, hand_out, item_of, problem_of
from streams.messages.jobs import LONGEST_DELAY_MS, LONGEST_TTR_MS, SHORTEST_TTR_MS, NewJob

Seconds = Annotated[float, Meta(ge=0, le=LONGEST_DELAY_MS / 1000)]
TtrSeconds = Annotated[float, Meta(ge=SHORTEST_TTR_MS / 1000, le=LONGEST_TTR_MS / 1000)]
Id = Annotated[str, Meta(min_length=1, max_length=255)]
_BRACKETS = ("{", "[")
_TTR = f"; use seconds, from {SHORTEST_TTR_MS / 1000:g} to {LONGEST_TTR_MS // 1000}"
_HINTS = {
    "command": "; use add, pop, finish or delete",
    "delay": f"; use seconds, from 0 to {LONGEST_DELAY_MS // 1000}",
    "ttr": _TTR,
    "TTR": _TTR,
    "timeout": f"; use seconds, from 0 to {LONGEST_WAIT_MS // 1000}",
}
"""The advice for a value of the wrong type or out of its range."""


class Add(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="add", tag_field="command"):
    """Put a job on a topic, due in `delay` seconds."""

    topic: str
    id: Id
    delay: Seconds = 0.0
    ttr: TtrSeconds | None = None
    TTR: TtrSeconds | None = None
    body: Raw = msgspec.field(default_factory=lambda: Raw(b'""'))


class Pop(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="pop", tag_field="command"):
    """Take a ready job of a topic. With `timeout`, wait so many seconds for one."""

    topic: str
    timeout: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_MS / 1000)] = 0.0


class Finish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="finish", tag_field="command"):
    """The job that was popped is done."""

    id: Id


class Delete(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="delete", tag_field="command"):
    """Remove a job, in whatever state it is."""

    id: Id
    topic: str | None = None


Command = Add | Pop | Finish | Delete


_command = msgspec.json.Decoder(Command)


async def carry_out(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Do what the command says."""
    try:
        return HttpAnswer(await _reply(shared, call, decoded(_command, call.body)))
    except RefusedRequest as told:
        if told.problem.status != 422:
            raise
        what, detail = told.problem.what, told.problem.detail
        return HttpAnswer(Reply(success=False, error=words(what, f"{detail}{_HINTS.get(what, '')}")))
    except BadJob as bad:
        return HttpAnswer(Reply(success=False, error=words(bad.field, f"{bad.what}; {bad.hint}")))


async def _reply(shared: GatewayState, call: HttpCall, command: Command) -> Reply:
    match command:
        case Add():
            call.caller.check("add")
            return await _add(shared, call, command)
        case Pop():
            call.caller.check("reserve")
            return await _pop(shared, call, command)
        case Finish():
            call.caller.check("settle")
            return await _finish(shared, call, command)
        case Delete():
            call.caller.check("delete")
            return await _delete(shared, call, command)
        case _:
            assert_never(command)


async def _add(shared: GatewayState, call: HttpCall, command: Add) -> Reply:
    ttr_s = command.ttr if command.ttr is not None else command.TTR
    check_body(command.body)
    job = NewJob(
        topic=call.caller.inner(command.topic),
        id=command.id,
        body=unwrapped(bytes(command.body)),
        delay_ms=round(command.delay * 1000),
        ttr_ms=None if ttr_s is None else round(ttr_s * 1000),
        nonce=call.key,
    )
    with shared.load.work("add", call.caller.key):
        await shared.quotas.check(call.caller, job.topic, [job])
        told = await shared.desk.add_one(job)
    item = item_of(call, told)
    if item.status == 429 or item.status >= 500:
        raise problem_of(item)
    if not item.is_there:
        return Reply(success=False, error=words(item.what, item.detail.removesuffix(ADVICE)), id=command.id)
    return Reply(success=True, id=item.id)


async def _pop(shared: GatewayState, call: HttpCall, command: Pop) -> Reply:
    topic = call.caller.inner(command.topic)
    found = await hand_out(shared, call, topic, most=1, wait_ms=round(command.timeout * 1000), ttr_ms=None)
    if not found:
        return Reply(success=True)
    return Reply(success=True, id=found[0].id, value=wrapped(bytes(found[0].body)))


async def _finish(shared: GatewayState, call: HttpCall, command: Finish) -> Reply:
    with shared.load.work("settle", call.caller.key):
        told = await shared.desk.finish_by_id(command.id, nonce=call.key, is_allowed=call.caller.is_own)
    if told.code == "ok":
        return Reply(success=True, id=command.id)
    return Reply(success=False, error=words(told.code, call.caller.said(told.reason)), id=command.id)


async def _delete(shared: GatewayState, call: HttpCall, command: Delete) -> Reply:
    topic = None if command.topic is None else call.caller.inner(command.topic)
    with shared.load.work("settle", call.caller.key):
        told = await shared.desk.delete(topic, command.id, nonce=call.key, is_allowed=call.caller.is_own)
    audit(call, "job.deleted", topic=topic or "", id=command.id, is_done=told.code == "ok")
    if told.code == "ok":
        return Reply(success=True, id=command.id)
    return Reply(success=False, error=words("not_found", told.reason), id=command.id)


def unwrapped(body: bytes) -> Raw:
    """Return the body to store: the content of a string if that is an object or a list, else the body unchanged."""
    if body[:1] != b'"':
        return Raw(body)
    text: str = msgspec.json.decode(body, type=str)
    if not text.startswith(_BRACKETS) or not text.endswith(("}", "]")):
        return Raw(body)
    inner = text.encode()
    try:
        msgspec.json.decode(inner)
    except (msgspec.MsgspecError, RecursionError):
        return Raw(body)
    return Raw(inner)


def wrapped(stored: bytes) -> str:
    """Return a stored body as JSON text: the content of a string, anything else unchanged."""
    if stored[:1] == b'"':
        return msgspec.json.decode(stored, type=str)
    return stored.decode()
