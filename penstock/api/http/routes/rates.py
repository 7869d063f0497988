"""Rates over HTTP. They are the operator's: a tenant's token cannot see them, and one with topics those of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from actors.flow.rates_desk import BadRate, RatesView, UnknownRate
from penstock.api.forms.rates import RateChange, RateQuery, RatesQuery
from penstock.api.http.callers import Caller
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded, query_of
from penstock.api.http.problems import refused
from penstock.api.http.routes.jobs import audit

_change = msgspec.json.Decoder(RateChange)


async def list_rates(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List the rates, a page at a time, with what was begun under each in the last full seconds, and which nodes have
    shares."""
    with _telling(shared, call):
        asked = query_of(RatesQuery, call.query)
        view = await shared.rates.list(asked.seconds, after=asked.after, limit=asked.limit)
        return HttpAnswer(view if call.caller.is_operator else _own(view, call.caller))


async def show(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show one rate, with what was begun under it in each of the last full seconds."""
    with _telling(shared, call):
        seconds = query_of(RateQuery, call.query).seconds
        call.caller.check_limit(call.value("kind"), call.value("name"))
        return HttpAnswer(await shared.rates.show(call.value("kind"), call.value("name"), seconds))


async def change(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Change a rate. It acts at once on every node. The answer has the rate before and after."""
    with _telling(shared, call):
        wanted = decoded(_change, call.body)
        call.caller.check_limit(call.value("kind"), call.value("name"))
        changed = await shared.rates.set(call.value("kind"), call.value("name"), wanted.rate)
    audit(call, "rate.changed", kind=changed.kind, name=changed.name, before=changed.before, rate=changed.rate)
    return HttpAnswer(changed)


def _own(view: RatesView, caller: Caller) -> RatesView:
    """Return what of a page is of the token's topics. A page may have fewer lines then, and still not be the last."""
    rates = [each for each in view.rates if caller.may_limit(each.kind, each.name)]
    slots = [each for each in view.slots if caller.may_limit(each.kind, each.name)]
    return msgspec.structs.replace(view, rates=rates, slots=slots, keys=len(slots))


@contextmanager
def _telling(shared: GatewayState, call: HttpCall) -> Iterator[None]:
    if call.caller.tenant:
        raise refused(403, "forbidden", "rates are the operator's")
    with shared.load.work("other", call.caller.key):
        try:
            yield
        except UnknownRate as error:
            detail = str(error) if call.caller.is_operator else "no such rate"  # the text may name another one
            raise refused(404, "not_found", detail, what="name", value=call.value("name")) from error
        except BadRate as error:
            raise refused(422, "bad", str(error), what=error.field) from error
