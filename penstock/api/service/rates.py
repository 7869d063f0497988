"""Rates over NATS."""

from actors.flow.rates_desk import RateChanged, RatesDesk, RatesView
from penstock.api.forms.rates import RateAsk, RateSetAsk, RatesQuery
from penstock.api.service.calls import Question


async def list_rates(desk: RatesDesk, ask: RatesQuery, question: Question) -> RatesView:
    return await desk.list(ask.seconds, after=ask.after, limit=ask.limit, most_bytes=question.page_bytes)


async def show(desk: RatesDesk, ask: RateAsk, _question: Question) -> RatesView:
    return await desk.show(ask.kind, ask.name, ask.seconds)


async def set_rate(desk: RatesDesk, ask: RateSetAsk, _question: Question) -> RateChanged:
    return await desk.set(ask.kind, ask.name, ask.rate)
