"""Settles reservations over HTTP, up to a thousand in a call, each with its own answer."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from actors.jobs.rules.job_answers import JobReply
from penstock.api.forms.jobs import AllSettled, Settled, ToBury, ToFinish, ToRelease, ToTouch
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded
from penstock.api.settling import SETTLES

NOT_HELD = "this receipt holds nothing"
ENDED = ("ok", "stale")


def _settles(
    verb: str, form: type[Any], about: str, *, is_over: bool = True
) -> Callable[[GatewayState, HttpCall], Awaitable[HttpAnswer]]:
    """Return the operation that settles receipts with `verb`. A receipt of another caller's topic gets the answer of an
    unknown one."""
    decoder = msgspec.json.Decoder(form)

    async def settle(shared: GatewayState, call: HttpCall) -> HttpAnswer:
        asked = decoded(decoder, call.body)
        call.charge(len(asked.receipts))
        inner = [call.caller.inner_receipt(receipt) for receipt in asked.receipts]
        with shared.load.work("settle", call.caller.key):
            told = iter(await SETTLES[verb](shared.desk, [one for one in inner if one is not None], asked))
        answers = [
            _answer(call, receipt, next(told))
            if one is not None
            else Settled(receipt=receipt, code="stale", reason=NOT_HELD)
            for receipt, one in zip(asked.receipts, inner, strict=True)
        ]
        if is_over:
            shared.settled(one for one, answer in zip(inner, answers, strict=True) if one and answer.code in ENDED)
        return HttpAnswer(AllSettled(ok=sum(answer.code == "ok" for answer in answers), answers=answers))

    settle.__doc__ = about
    return settle


finish = _settles("finish", ToFinish, "The jobs are done.")
touch = _settles("touch", ToTouch, "Still at it: hold the jobs longer.", is_over=False)
release = _settles("release", ToRelease, "Give the jobs back, to be ready again later.")
bury = _settles("bury", ToBury, "Set the jobs aside, among the dead letters.")


def _answer(call: HttpCall, receipt: str, told: JobReply) -> Settled:
    return Settled(receipt=receipt, code=told.code, reason=call.caller.said(told.reason), until_ms=told.until_ms)
