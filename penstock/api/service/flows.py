"""Flows over NATS."""

from collections.abc import Awaitable, Callable

from actors.flow.desk import FlowDesk, FlowView
from actors.flow.rules.obstacles import RowWhy
from penstock.api.forms.flows import FlowAsk, FlowSetAsk, FlowsShown, RowAsk
from penstock.api.forms.pages import PageQuery
from penstock.api.service.calls import Question


async def list_flows(desk: FlowDesk, ask: PageQuery, question: Question) -> FlowsShown:
    return FlowsShown(*await desk.list(after=ask.after, limit=ask.limit, most_bytes=question.page_bytes))


def of_flow(
    act: Callable[[FlowDesk, str], Awaitable[FlowView]],
) -> Callable[[FlowDesk, FlowAsk, Question], Awaitable[FlowView]]:
    """Return the endpoint that calls `act` with a flow's key, and returns its view."""
    return lambda desk, ask, _question: act(desk, ask.flow)


async def why(desk: FlowDesk, ask: RowAsk, _question: Question) -> RowWhy:
    return await desk.why(ask.flow, ask.shard, ask.key)


async def set_flow(desk: FlowDesk, ask: FlowSetAsk, _question: Question) -> FlowView:
    return await desk.set(ask.flow, ask.set)
