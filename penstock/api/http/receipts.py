"""Reservations settled over HTTP, up to a thousand in a call, each with its own answer."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from actors.jobs.rules.job_answers import Answer as Told
from penstock.api.forms.jobs import AllSettled, Settled, ToBury, ToFinish, ToRelease, ToTouch
from penstock.api.http.calls import Answer, Call, Shared, decoded

NOT_HELD = "this receipt holds nothing"
ENDED = ("ok", "stale")

_finish = msgspec.json.Decoder(ToFinish).decode
_touch = msgspec.json.Decoder(ToTouch).decode
_release = msgspec.json.Decoder(ToRelease).decode
_bury = msgspec.json.Decoder(ToBury).decode


async def finish(shared: Shared, call: Call) -> Answer:
    """The jobs are done."""
    asked = decoded(_finish, call.body)
    return await _settled(shared, call, asked.receipts, shared.desk.finish)


async def touch(shared: Shared, call: Call) -> Answer:
    """Still at it: hold the jobs longer."""
    asked = decoded(_touch, call.body)
    return await _settled(
        shared, call, asked.receipts, lambda receipts: shared.desk.touch(receipts, ttr_ms=asked.ttr_ms), is_over=False
    )


async def release(shared: Shared, call: Call) -> Answer:
    """Give the jobs back, to be ready again later."""
    asked = decoded(_release, call.body)
    return await _settled(
        shared,
        call,
        asked.receipts,
        lambda receipts: shared.desk.release(
            receipts, delay_ms=asked.delay_ms, reason=asked.reason, counts=asked.counts
        ),
    )


async def bury(shared: Shared, call: Call) -> Answer:
    """Set the jobs aside, among the dead letters."""
    asked = decoded(_bury, call.body)
    return await _settled(
        shared, call, asked.receipts, lambda receipts: shared.desk.bury(receipts, reason=asked.reason)
    )


async def _settled(
    shared: Shared,
    call: Call,
    receipts: Sequence[str],
    settle: Callable[[Sequence[str]], Awaitable[Sequence[Told]]],
    *,
    is_over: bool = True,
) -> Answer:
    """Settle those that are the caller's. One of somebody else's topic is answered like one that never was."""
    call.charge(len(receipts))
    inner = [call.caller.inner_receipt(receipt) for receipt in receipts]
    with shared.load.work("settle", call.caller.key):
        told = iter(await settle([one for one in inner if one is not None]))
    answers = [
        _answer(call, receipt, next(told))
        if one is not None
        else Settled(receipt=receipt, code="stale", reason=NOT_HELD)
        for receipt, one in zip(receipts, inner, strict=True)
    ]
    if is_over:
        shared.settled(one for one, answer in zip(inner, answers, strict=True) if one and answer.code in ENDED)
    return Answer(AllSettled(ok=sum(answer.code == "ok" for answer in answers), answers=answers))


def _answer(call: Call, receipt: str, told: Told) -> Settled:
    return Settled(receipt=receipt, code=told.code, reason=call.caller.said(told.reason), until_ms=told.until_ms)
