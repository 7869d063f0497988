"""Flows over HTTP. They are the operator's: a tenant's token cannot see them."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from actors.flow.desk import FlowDesk, FlowView
from actors.flow.flows import BadFlow, UnknownFlow
from penstock.api.forms.flows import FlowChanges, FlowsShown, RowQuery
from penstock.api.forms.pages import PageQuery
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded, query_of
from penstock.api.http.problems import refused
from penstock.api.http.routes.jobs import audit

_changes = msgspec.json.Decoder(FlowChanges)
_values = msgspec.json.Decoder(dict[str, Any])


async def list_flows(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List the flows, a page at a time, each with its last round."""
    with _telling(shared, call):
        asked = query_of(PageQuery, call.query)
        found, behind = await shared.flows.list(after=asked.after, limit=asked.limit)
        return HttpAnswer(FlowsShown([each for each in found if call.caller.may_limit("flow", each.flow)], behind))


async def show(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show a flow with its latest rounds."""
    with _telling(shared, call):
        return HttpAnswer(await shared.flows.show(call.value("flow")))


async def why(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Tell why a row of a flow is not executed."""
    asked = query_of(RowQuery, call.query)
    with _telling(shared, call):
        return HttpAnswer(await shared.flows.why(call.value("flow"), asked.shard, asked.key))


async def change(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Change some of a flow's settings. They act at once on every node."""
    with _telling(shared, call):
        decoded(_changes, call.body)
        values, flow = decoded(_values, call.body), call.value("flow")
        view = await shared.flows.set(flow, values)
    audit(call, "flow.changed", flow=flow, settings=values)
    return HttpAnswer(view)


async def pause(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Load and execute nothing more. Rows that run come to their end."""
    return await _steered(shared, call, "flow.paused", FlowDesk.pause)


async def resume(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Go on with a flow."""
    return await _steered(shared, call, "flow.resumed", FlowDesk.resume)


async def run(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Have a round now, beside the schedule."""
    return await _steered(shared, call, "flow.run", FlowDesk.run)


async def _steered(
    shared: GatewayState, call: HttpCall, event: str, act: Callable[[FlowDesk, str], Awaitable[FlowView]]
) -> HttpAnswer:
    with _telling(shared, call):
        view = await act(shared.flows, call.value("flow"))
    audit(call, event, flow=view.flow)
    return HttpAnswer(view)


@contextmanager
def _telling(shared: GatewayState, call: HttpCall) -> Iterator[None]:
    if call.caller.tenant:
        raise refused(403, "forbidden", "flows are the operator's")
    if "flow" in call.values:
        call.caller.check_limit("flow", call.value("flow"))
    with shared.load.work("other", call.caller.key):
        try:
            yield
        except UnknownFlow as error:
            said = error if call.caller.is_operator else UnknownFlow(error.flow)  # the desk's text may name another one
            raise refused(404, "not_found", str(said), what="flow", value=call.value("flow")) from error
        except BadFlow as error:
            raise refused(422, "bad", str(error)) from error
