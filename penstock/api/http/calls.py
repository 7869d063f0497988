"""One request as the operations see it, and the state that all operations share."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

import anyio
import msgspec
from anyio import CancelScope

from actors.batch.desk import BatchDesk
from actors.batch.rules.row_looks import AskRows, FirstLook
from actors.batch.rules.sheet_lines import SheetHead, SheetKind
from actors.batch.views import ItemShown
from actors.fetch.source_desk import SourceDesk
from actors.flow.desk import FlowDesk
from actors.flow.rates_desk import RatesDesk
from actors.jobs.desk import JobDesk
from actors.jobs.schedule_desk import ScheduleDesk
from actors.runtime.rules.setting_values import BadSetting
from actors.runtime.rules.spellings import decode_spelled
from actors.runtime.supervisor import one_error
from actors.zone.desk import ZoneDesk
from penstock.api.forms.reading import choices
from penstock.api.http.callers import Caller
from penstock.api.http.limits import Load, TokenBucket
from penstock.api.http.problems import RefusedRequest, refused, shown
from penstock.api.http.quotas import Quotas
from penstock.api.http.uploads import Upload
from streams.subjects import TOKEN

__all__ = ["GatewayState", "HttpAnswer", "HttpCall", "Stream", "decoded", "query_of"]

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
Stream = Callable[[Callable[[Any], Awaitable[None]]], Awaitable[None]]
"""Sends ASGI messages with the function that it gets."""


SheetParts = Callable[[SheetHead, AsyncIterator[list[ItemShown]], SheetKind], AsyncIterator[bytes]]
"""Writes a sheet of pages of items."""


class LookAtFile(Protocol):
    """Takes a first look at a file."""

    async def __call__(
        self, task: str, parts: AsyncIterator[bytes], ask: AskRows, *, name: str, sheet: str, encoding: str
    ) -> FirstLook: ...


class SettleListener(Protocol):
    """Gets a call for each settlement."""

    def settled(self, receipt: str) -> None: ...


C = TypeVar("C", bound=SettleListener)


class HttpAnswer(NamedTuple):
    """The answer of an operation: a status and a value that becomes JSON, or a stream, which sends by itself."""

    value: object
    status: int = 200
    stream: Stream | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class GatewayState:
    """The state of one gateway's operations. `trouble` returns why nothing can be added, empty if it can.
    `answered` gets the operation and the status of each answer. `polls` are the waits that end at once when the node
    stops."""

    desk: JobDesk
    batches: BatchDesk
    schedules: ScheduleDesk
    flows: FlowDesk
    rates: RatesDesk
    zones: ZoneDesk
    sources: SourceDesk
    sheet_parts: SheetParts
    look_at_file: LookAtFile
    is_connected: Callable[[], bool]
    trouble: Callable[[], str] = lambda: ""
    answered: Callable[[str, int], None] = lambda _operation, _status: None
    load: Load = field(default_factory=Load)
    quotas: Quotas = field(init=False)
    polls: set[CancelScope] = field(default_factory=set)
    is_stopping: bool = False
    _credits: set[SettleListener] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.quotas = Quotas(self.desk)

    @contextmanager
    def crediting(self, credit: C) -> Iterator[C]:
        """Call `credit.settled` for each settlement on this node while the block runs."""
        self._credits.add(credit)
        try:
            yield credit
        finally:
            self._credits.discard(credit)

    def settled(self, receipts: Iterable[str]) -> None:
        """Report to every push that these receipts are settled."""
        if self._credits:
            for receipt in receipts:
                for credit in self._credits:
                    credit.settled(receipt)

    def end_polls(self) -> None:
        """End every push, and every long poll with an empty answer. Later ones end at once."""
        self.is_stopping = True
        for scope in self.polls:
            scope.cancel()


class HttpCall:
    """One admitted request: its caller, its content, and whether the client is still connected."""

    __slots__ = (
        "_cycle",
        "_receive",
        "address",
        "body",
        "caller",
        "key",
        "operation",
        "query",
        "rate",
        "traceparent",
        "upload",
        "values",
    )

    def __init__(
        self,
        caller: Caller,
        *,
        address: str,
        query: bytes,
        body: bytes,
        receive: Receive,
        cycle: Any,
        rate: TokenBucket | None,
        upload: Upload | None,
        key: str,
        traceparent: str,
    ) -> None:
        self.caller = caller
        self.address = address
        self.query = query
        self.body = body
        self.rate = rate
        self.upload = upload
        self.key = key  # the Idempotency-Key: the same in each repeat of this request
        self.traceparent = traceparent
        self.operation = "unknown"
        self.values: dict[str, str] = {}
        self._receive = receive
        self._cycle = cycle

    @property
    def is_gone(self) -> bool:
        """True if the client has closed its connection."""
        return bool(self._cycle.disconnected)

    def may_answer(self, size: int) -> bool:
        """Return whether an answer of so many bytes may wait here until the client reads it."""
        return bool(self._cycle.may_hold(size))

    def charge(self, count: int) -> None:
        """Count a batch as its jobs against the token's rate: this one is admitted, the next one waits."""
        if self.rate is not None and count > 1:
            self.rate.owe(count - 1)

    def value(self, name: str) -> str:
        """Return a part of the path, decoded. Raises RefusedRequest if it is not UTF-8."""
        try:
            return unquote(self.values[name], errors="strict")
        except UnicodeDecodeError:
            raise refused(
                400, "malformed", "percent escapes are of UTF-8", what=name, value=self.values[name]
            ) from None

    def topic(self) -> str:
        """Return the path's topic as the broker knows it. Raises RefusedRequest if it is not a topic of the caller."""
        topic = self.value("topic")
        inner = self.caller.inner(topic)
        if not TOKEN.fullmatch(inner):
            raise refused(
                422, "bad", "is not a topic", what="topic", value=topic, hint="use 1 to 64 of A-Z a-z 0-9 _ -"
            )
        return inner

    async def gone(self) -> None:
        """Return when the client has closed its connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def while_there(self, shared: GatewayState, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        """Return the result of `work`. If the client goes or the node stops before, cancel it and return
        `otherwise`."""
        result = otherwise
        if shared.is_stopping:
            return result

        async def watch() -> None:
            await self.gone()
            tasks.cancel_scope.cancel()

        with one_error():
            async with anyio.create_task_group() as tasks:
                shared.polls.add(tasks.cancel_scope)
                tasks.start_soon(watch)
                try:
                    result = await work()
                finally:
                    shared.polls.discard(tasks.cancel_scope)
                tasks.cancel_scope.cancel()
        return result


def decoded(decoder: msgspec.json.Decoder[T], body: bytes, *, what: str = "body") -> T:
    """Return the decoded body. Raises RefusedRequest: 400 if it is not JSON, 422 if the JSON has another form."""
    try:
        return decode_spelled(decoder.decode, body)
    except BadSetting as error:
        raise refused(422, "bad", error.why, what=error.name, value=shown(str(error.value)), hint=error.do) from None
    except msgspec.ValidationError as error:
        raise invalid(error, what=what, more=choices(error, decoder.type)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refused(400, "malformed", f"not JSON: {shown(error)}", what=what) from None
    except RecursionError:
        raise refused(400, "malformed", "nested too deeply", what=what) from None


def invalid(error: msgspec.ValidationError, *, what: str, more: str = "") -> RefusedRequest:
    """Return the problem of valid JSON with a wrong value. The text of msgspec names its place."""
    said, _, place = str(error).partition(" - at `$")
    return refused(422, "bad", shown(said) + more, what=place.rstrip("`").lstrip(".") or what)


def query_of(type_: type[T], query: bytes, fields: Mapping[str, str] = {}) -> T:
    """Return the values of the query, and of a form's `fields`, as a struct. Raises RefusedRequest for unknown names,
    repeats and wrong values."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=20,
        )
    except ValueError:
        raise refused(400, "malformed", "not name=value pairs", what="query", value=query.decode("latin-1")) from None
    pairs += fields.items()
    _check_names([name for name, _ in pairs], type_)
    try:
        return msgspec.convert(dict(pairs), type_, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error, what="query", more=choices(error, type_)) from None


def _check_names(names: Sequence[str], type_: type[Any]) -> None:
    for name in names:
        if name not in type_.__struct_fields__:
            known = ", ".join(type_.__struct_fields__) or "none"
            raise refused(422, "bad", f"no such parameter; there are: {known}", what=shown(name))
        if names.count(name) > 1:
            raise refused(422, "bad", "given more than once", what=shown(name))
