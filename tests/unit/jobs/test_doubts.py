"""What becomes of deliveries that are held back."""

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import anyio
import pytest

from actors.jobs.deliveries import Whose
from actors.jobs.worker import doubts
from actors.jobs.worker.doubts import Doubts
from streams.errors import Disconnected
from streams.pull.delivery import Delivery


class Held:
    """As much of a delivery as is used here."""

    subject, seq = "penstock.jobs.ready.mail.1", 1

    def __init__(self) -> None:
        self.said: list[str] = []

    async def ack(self) -> None:
        self.said.append("ack")

    def forget(self) -> None:
        self.said.append("forget")


async def decided(answers: Sequence[Whose | None], enough: int) -> tuple[Held, list[Delivery], int]:
    """Look at one delivery with these answers, `None` for a failed look. Return it, the queue, and the number of
    looks."""
    held, queue, left, done = Held(), deque[Delivery](), list(answers), anyio.Event()
    delivery = cast(Delivery, held)

    async def whose(deliveries: Sequence[Delivery]) -> dict[Delivery, Whose]:
        answer = left.pop(0)
        if not left:
            done.set()
        if answer is None:
            raise Disconnected("away")
        return dict.fromkeys(deliveries, answer)

    looked = Doubts(whose, lambda: None)
    looked.add(queue, delivery, 0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(looked.run)
        with anyio.fail_after(5):
            await done.wait()
            while len(held.said) + len(queue) < enough:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return held, list(queue), len(answers) - len(left)


async def test_what_cannot_be_looked_at_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not let go of: that would count as an attempt."""
    monkeypatch.setattr(doubts, "AGAIN_S", 0.01)
    held, queue, looks = await decided([None, "unknown", "ours"], enough=1)
    assert (cast(Any, queue), held.said, looks) == ([held], [], 3)


@pytest.mark.parametrize(("whose", "said"), [("nobody's", ["ack", "forget"]), ("another's", ["forget"])])
async def test_what_is_not_ours_is_let_go_of(whose: Whose, said: list[str]) -> None:
    held, queue, _ = await decided([whose], enough=len(said))
    assert (queue, held.said) == ([], said)
