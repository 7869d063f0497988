"""How the services of a node answer: JSON, and for a failed request an error with a code, a reason and the field."""

from collections.abc import Awaitable, Callable

import msgspec

from actors.batch.instances import InstanceExists, UnknownInstance
from actors.batch.rules.refusals import BatchRefused
from actors.batch.tasks import UnknownTask
from actors.fetch.ledgers import MissingLedger
from actors.fetch.rules.looks import BadLook
from actors.fetch.rules.slices import MalformedSliceId
from actors.fetch.sources import UnknownSource, UnusableSource
from actors.flow.flows import BadFlow, UnknownFlow
from actors.flow.rates_desk import BadRate, UnknownRate
from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.job_answers import HTTP_CODES
from actors.jobs.rules.job_rules import BadJob
from actors.jobs.schedule_desk import ScheduleRefused
from actors.zone.desk import UnknownZone
from actors.zone.rules.routing import BadMap
from penstock.api.forms.reading import Malformed
from penstock.errors import UsageError
from streams.buckets.files import FileTooLarge
from streams.errors import MalformedSubject, OutcomeUnknown, StreamError, TooLarge
from streams.link.frames import Message
from streams.micro import RequestRefused

__all__ = ["encode", "guarded", "refusal_of", "refused"]

NUMBERS: dict[str, int] = {"state": 409, "too_large": 413, **{str(code): HTTP_CODES[code] for code in HTTP_CODES}}
"""`state`: the present state does not allow the request."""
ENDINGS = {"unknown": "; ask again", "unavailable": "; not done, ask again later"}
encode = msgspec.json.Encoder().encode


def refused(code: str, reason: str, field: str = "") -> RequestRefused:
    """Return the error that answers a request."""
    told = {"code": code, "reason": reason, **({"field": field} if field else {})}
    return RequestRefused(NUMBERS.get(code, 400), reason, encode({"error": told}))


def refusal_of(error: Exception) -> tuple[str, str]:
    """Return the code of a failed request, and its wrong field. Both are empty for a fault of the program."""
    match error:
        case UnknownTask():
            return "not_found", "task"
        case UnknownFlow():
            return "not_found", "flow"
        case BadFlow():
            return "bad", "set"
        case UnknownRate():
            return "not_found", "name"
        case BadRate():
            return "bad", error.field
        case UnknownSource() | MissingLedger():
            return "not_found", "source"
        case BadLook():
            return ("bad", error.field) if error.field else ("state", "source")
        case UnusableSource():
            return "state", "source"
        case MalformedSliceId():
            return "bad", "slice"
        case UnknownZone():
            return "not_found", "zone"
        case BadMap():
            return "bad", "change"
        case UnknownInstance():
            return "not_found", "id"
        case InstanceExists():
            return "exists", "id"
        case FileTooLarge():
            return "too_large", "file"
        case BatchRefused():
            return error.code, error.field
        case ScheduleRefused():
            return error.code, "name"
        case BadJob() | BadRecurrence():
            return "bad", error.field
        case Malformed() | MalformedSubject() | UsageError():
            return "bad", ""
        case OutcomeUnknown():
            return "unknown", ""
        case TooLarge():
            return "too_large", ""
        case StreamError():
            return "unavailable", ""
        case _:
            return "", ""


def guarded(answer: Callable[[Message], Awaitable[bytes]]) -> Callable[[Message], Awaitable[bytes]]:
    """Turn the errors of a request, and those of the broker, into answers."""

    async def guard(request: Message) -> bytes:
        try:
            return await answer(request)
        except Exception as error:  # a fault of the program is raised again
            code, field = refusal_of(error)
            if not code:
                raise
            raise refused(code, f"{error}{ENDINGS.get(code, '')}", field) from error

    return guard
