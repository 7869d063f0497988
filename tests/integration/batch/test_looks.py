"""A first look at a sheet while the process that serves its task stands still."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Raw

from actors.batch.tasks import TaskRecord
from penstock.rows.first_look import first_look
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.batch import RowsSeen
from tests.support.batches import batch_of, plant

TASK = "looked-at"
ROWS = 3_000


def sheet(folder: Path) -> Path:
    path = folder / "rows.csv"
    path.write_text("sku\n" + "".join(f"T-{number}\n" for number in range(ROWS)), encoding="utf-8")
    return path


async def test_a_process_that_stands_still_holds_a_look_up_once(connection: Connection, tmp_path: Path) -> None:
    asked = list[str]()

    def take(message: Message) -> None:
        asked.append(message.subject)

    async with plant(connection, [], roles=("desk",)) as node:
        await node.engine.tasks.declare(TaskRecord(task=TASK, is_sheet=True))
        still = await connection.subscribe(connection.namespace.batch_looks(TASK), take)

        async def ask(rows: Sequence[Raw], shown: int) -> RowsSeen:
            return await node.desk.new.look(batch_of(TASK), rows, shown=shown)

        look = await first_look(TASK, sheet(tmp_path), ask)
        await still.unsubscribe()
    assert (look.rows, look.failing, len(look.first), look.columns[0].name) == (ROWS, 0, 5, "sku")
    assert "no process serves looked-at" in look.unchecked
    assert len(asked) <= 2
