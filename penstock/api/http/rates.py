"""Rates over HTTP. They are the operator's: a tenant's token cannot see them."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from actors.flow.rates_desk import BadRate, UnknownRate
from penstock.api.forms.rates import RateChange, RateQuery, RatesQuery
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded, query_of
from penstock.api.http.jobs import audit
from penstock.api.http.problems import refused

_change = msgspec.json.Decoder(RateChange).decode


async def list_rates(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List the rates, a page at a time, with what was begun under each in the last full seconds, and which nodes have
    shares."""
    with _telling(shared, call):
        asked = query_of(RatesQuery, call.query)
        return HttpAnswer(await shared.rates.list(asked.seconds, after=asked.after, limit=asked.limit))


async def show(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show one rate, with what was begun under it in each of the last full seconds."""
    with _telling(shared, call):
        seconds = query_of(RateQuery, call.query).seconds
        return HttpAnswer(await shared.rates.show(call.value("kind"), call.value("name"), seconds))


async def change(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Change a rate. It acts at once on every node. The answer has the rate before and after."""
    with _telling(shared, call):
        wanted = decoded(_change, call.body)
        changed = await shared.rates.set(call.value("kind"), call.value("name"), wanted.rate)
    audit(call, "rate.changed", kind=changed.kind, name=changed.name, before=changed.before, rate=changed.rate)
    return HttpAnswer(changed)


@contextmanager
def _telling(shared: GatewayState, call: HttpCall) -> Iterator[None]:
    if call.caller.tenant:
        raise refused(403, "forbidden", "rates are the operator's")
    with shared.load.work("other", call.caller.key):
        try:
            yield
        except UnknownRate as error:
            raise refused(404, "not_found", str(error), what="name", value=call.value("name")) from error
        except BadRate as error:
            raise refused(422, "bad", str(error), what=error.field) from error
