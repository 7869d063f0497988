"""Batches from another program: a sheet goes in, its rows run, a sheet comes out."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from penstock.errors import NotAccepted, Timeout, Unavailable, UsageError
from penstock.rows.sheets.parsing import parse_sheet
from penstock.rows.sheets.rows import Row
from penstock.sdk import client_batches
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_batches import Batches
from streams.buckets.files import Files
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.batch_node import UNSERVED
from tests.support.moments import a_moment

pytestmark = pytest.mark.three_servers

ROWS = 40


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    """Forty products, of which four have a wrong price and four find the warehouse busy."""
    path = tmp_path / "products.csv"
    lines = [f"A{number},{-1 if number % 10 == 0 else number}" for number in range(ROWS)]
    path.write_text("\n".join(["sku,price", *lines, ""]), encoding="utf-8")
    return path


async def rows_of(path: Path) -> list[Row]:
    return [row async for rows in parse_sheet(path, name=path.name) for row in rows]


async def uploads(link: Connection, instance_id: str) -> list[str]:
    """Return the names of what was uploaded for an instance and is there."""
    async with Publisher(link) as publisher:
        files = Files(link, publisher, link.namespace.bucket("FILES"))
        return [info.name async for info in files.all() if info.name.startswith(f"{instance_id}/upload")]


async def test_a_file_is_sent_while_the_nodes_have_room_for_it(
    link: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_batches, "ROOM_S", 0.0)
    path, asked = tmp_path / "large.csv", list[object]()
    path.write_bytes(b"sku\n" * (1 << 20))

    class GetsFull(ServiceClient):
        async def ask(self, endpoint: str, question: object, form: type[Any], **how: Any) -> Any:
            asked.append(endpoint)
            if len(asked) == 3:
                raise Unavailable("the store is full")
            return await super().ask(endpoint, question, form, **how)

    with pytest.raises(Unavailable, match="full"):
        await Batches(GetsFull(link, "batch", 30.0), link).submit("register", file=path, id="client-large")
    assert asked == ["check"] * 3
    assert await uploads(link, "client-large") == []
    async with Publisher(link) as publisher:
        assert await Files(link, publisher, link.namespace.bucket("FILES")).ids_of("client-large") == {}


async def test_what_cannot_be_submitted_is_refused_before_its_file_is_sent(batches: Batches, sheet: Path) -> None:
    sent: list[float] = []
    with pytest.raises(NotAccepted) as refused:
        await batches.submit("register", file=sheet, callback="http://elsewhere.example.org/", on_sent=sent.append)
    assert (refused.value.field, sent) == ("callback", [])


async def test_a_batch_begins_later_and_after_another(batches: Batches) -> None:
    due = datetime.now(UTC) + timedelta(days=1)
    first = await batches.submit("count", {"n": 1}, id="client-first", due=due)
    second = await batches.submit("count", {"n": 1}, id="client-second", delay="1s", after="client-first")
    assert (first.due_ms, second.after) == (round(due.timestamp() * 1000), "client-first")
    assert (await batches.why("client-second")).code == "after"
    await batches.cancel("client-first")
    assert (await batches.wait("client-second", timeout_s=60)).state == "failed"


async def test_a_sheet_becomes_a_sheet_with_each_rows_fate(batches: Batches, sheet: Path, tmp_path: Path) -> None:
    shares: list[float] = []
    made = await batches.submit("register", {"who": "me"}, file=sheet, tenant="client", on_sent=shares.append)
    assert shares[-1] == 1.0
    states: list[str] = []
    view = await batches.wait(made.instance_id, timeout_s=30, on_look=lambda seen: states.append(seen.state))
    assert (view.state, states[-1], view.items) == ("done", "done", ROWS)
    assert (view.counts.succeeded, view.counts.failed) == (ROWS - 8, 8)
    failed = [item async for item in batches.items(made.instance_id, status="failed")]
    assert [item.index for item in failed][:2] == [0, 7]
    assert failed[0].info == "a price below zero"
    assert "warehouse busy" in failed[1].info
    assert [each.instance_id for each in await batches.list(tenant="client")] == [made.instance_id]

    fetched = await batches.result(made.instance_id, tmp_path / "result.xlsx")
    found = await rows_of(fetched)
    assert len(found) == ROWS
    assert found[0][1]["reason"] == "a price below zero"
    assert {cells["status"] for _, cells in found} == {"succeeded", "failed"}
    assert sorted(os.listdir(tmp_path)) == ["products.csv", "result.xlsx"]

    again = await batches.retry(made.instance_id, [0, 1])
    assert again.passes == 2
    view = await batches.wait(made.instance_id, timeout_s=30)
    assert (view.counts.succeeded, view.counts.failed) == (ROWS - 8, 8)
    assert (await batches.retry(made.instance_id)).passes == 3


async def test_a_file_submitted_twice_under_one_id_is_one_instance(
    batches: Batches, link: Connection, sheet: Path
) -> None:
    first = await batches.submit("register", file=sheet, id="twice")
    again = await batches.submit("register", file=sheet, id="twice")
    assert again.created_ms == first.created_ms
    kept = await uploads(link, "twice")
    assert len(kept) == 1
    await anyio.Path(sheet).write_text("sku,price\nB1,1\n", encoding="utf-8")
    with pytest.raises(NotAccepted) as refused:
        await batches.submit("register", file=sheet, id="twice")
    assert (refused.value.code, refused.value.field) == ("exists", "id")
    assert await uploads(link, "twice") == kept
    assert (await batches.wait("twice", timeout_s=30)).items == ROWS


async def test_a_sheet_of_a_named_encoding_is_read(batches: Batches, tmp_path: Path) -> None:
    path = tmp_path / "products.csv"
    path.write_bytes("sku,price\n\u7d05\u8336\u2460,3\n".encode("cp932"))
    made = await batches.submit("register", file=path, id="tea", encoding="Shift_JIS")
    assert (await batches.wait(made.instance_id, timeout_s=30)).counts.succeeded == 1
    assert [item.item[1]["sku"] async for item in batches.items("tea")] == ["\u7d05\u8336\u2460"]
    with pytest.raises(NotAccepted) as other:
        await batches.submit("register", file=path, id="tea", encoding="gb18030")
    assert other.value.code == "exists"


@pytest.mark.parametrize(
    ("codec", "encoding", "is_guessed"),
    [("gb18030", "", True), ("gb18030", "gb18030", False), ("utf-8", "", False), ("utf-16", "", False)],
)
async def test_a_guessed_encoding_is_told_with_the_result(
    batches: Batches, tmp_path: Path, codec: str, encoding: str, is_guessed: bool
) -> None:
    path = tmp_path / "products.csv"
    path.write_bytes("sku,price\n\u8336\u58f6,3\n".encode(codec))
    made = await batches.submit("register", file=path, encoding=encoding)
    view = await batches.wait(made.instance_id, timeout_s=30)
    assert (view.state, view.counts.succeeded) == ("done", 1)
    assert view.result.get("note", "").startswith("its text was read as GB 18030; if letters are wrong") == is_guessed


async def test_a_result_keeps_the_sheets_own_columns(batches: Batches, tmp_path: Path) -> None:
    path = tmp_path / "products.csv"
    await anyio.Path(path).write_text("status,row,sku,price,reason\nnew,x7,A1,-1,moved\n", encoding="utf-8")
    made = await batches.submit("register", file=path)
    await batches.wait(made.instance_id, timeout_s=30)
    [(_, cells)] = await rows_of(await batches.result(made.instance_id, tmp_path / "result.xlsx"))
    assert list(cells.items()) == [
        ("penstock_row", 2),
        ("status", "new"),
        ("row", "x7"),
        ("sku", "A1"),
        ("price", "-1"),
        ("reason", "moved"),
        ("penstock_status", "failed"),
        ("penstock_reason", "a price below zero"),
    ]


async def test_a_column_that_comes_late_is_in_the_result(batches: Batches, tmp_path: Path) -> None:
    path = tmp_path / "products.jsonl"
    lines = [f'{{"sku":"A{number}0","price":1}}\n' for number in range(1_005)]
    await anyio.Path(path).write_text("".join([*lines, '{"sku":"B1","price":2,"colour":"green"}\n']))
    made = await batches.submit("register", file=path)
    await batches.wait(made.instance_id, timeout_s=60)
    rows = await rows_of(await batches.result(made.instance_id, tmp_path / "result.xlsx"))
    assert list(rows[0][1]) == ["row", "sku", "price", "colour", "status", "reason"]
    assert (len(rows), rows[0][1]["colour"], rows[-1][1]["colour"]) == (1_006, "", "green")


async def test_a_result_is_made_anew_without_the_upload(
    batches: Batches, link: Connection, sheet: Path, tmp_path: Path
) -> None:
    made = await batches.submit("register", file=sheet)
    await batches.wait(made.instance_id, timeout_s=30)
    async with Publisher(link) as publisher:
        files = Files(link, publisher, link.namespace.bucket("FILES"))
        assert [await files.delete(name) for name in await uploads(link, made.instance_id)] == [True]
    await batches.retry(made.instance_id)
    assert (await batches.wait(made.instance_id, timeout_s=30)).state == "done"
    rows = await rows_of(await batches.result(made.instance_id, tmp_path / "result.xlsx"))
    assert (len(rows), list(rows[0][1])) == (ROWS, ["row", "sku", "price", "status", "reason"])


async def test_what_takes_long_is_paused_resumed_and_cancelled(batches: Batches, tmp_path: Path) -> None:
    made = await batches.submit(UNSERVED, {"n": 1000})
    with pytest.raises(Timeout):
        await batches.wait(made.instance_id, timeout_s=0.1)
    assert (await batches.pause(made.instance_id)).state == "paused"
    assert (await batches.resume(made.instance_id)).state in ("pending", "splitting", "running")
    with pytest.raises(NotAccepted) as early:
        await batches.retry(made.instance_id)
    assert early.value.code == "state"
    with pytest.raises(NotAccepted) as nothing:
        await batches.result(made.instance_id, tmp_path / "none")
    assert nothing.value.code == "not_found"
    await batches.cancel(made.instance_id)
    view = await batches.wait(made.instance_id, timeout_s=60)
    assert view.state == "cancelled"


KINDS = ["xlsx", "csv", "jsonl"]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_failed_rows_alone_are_handed_in_again_as_they_were(
    batches: Batches, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "products.csv"
    await anyio.Path(path).write_text(
        "sku,price,=note\nA1,1,fine\n\nA2,-1,=1+1\nA3,-1,\n007,2,'=x\nA17,5,last\n", encoding="utf-8"
    )
    made = await batches.submit("register", file=path)
    view = await batches.wait(made.instance_id, timeout_s=30)
    assert view.reasons[0].startswith("row 4: ")
    sheet = await batches.sheet(made.instance_id, tmp_path / f"failed.{kind}", status="failed")
    again = await batches.submit("register", file=sheet)
    first = [each async for each in batches.items(made.instance_id)]
    view = await batches.wait(again.instance_id, timeout_s=30)
    second = [each async for each in batches.items(again.instance_id)]
    assert [each.item[1] for each in second] == [each.item[1] for each in first if each.status == "failed"]
    assert [each.row for each in first] == [2, 4, 5, 6, 7]
    assert (view.state, view.counts.failed) == ("done", 4)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_whole_sheet_is_that_of_the_result(batches: Batches, sheet: Path, tmp_path: Path, kind: str) -> None:
    made = await batches.submit("register", file=sheet)
    await batches.wait(made.instance_id, timeout_s=30)
    whole = await rows_of(await batches.sheet(made.instance_id, tmp_path / f"whole.{kind}"))
    if kind == "xlsx":
        assert whole == await rows_of(await batches.result(made.instance_id, tmp_path / "result.xlsx"))
    assert [(int(cells["row"]), cells["status"]) for _, cells in whole][:2] == [(2, "failed"), (3, "succeeded")]


async def test_a_cancelled_batch_has_its_sheet_and_one_without_rows_says_so(
    batches: Batches, link: Connection, tmp_path: Path
) -> None:
    path = tmp_path / "many.csv"
    await anyio.Path(path).write_text("sku,price\n" + "A7,1\n" * 1_200, encoding="utf-8")
    await batches.limit("register", item_rate=1)
    try:
        made = await batches.submit("register", file=path)
        with pytest.raises(NotAccepted, match="its sheet can be made when it is over") as early:
            await batches.sheet(made.instance_id, tmp_path / "early.csv")
        with anyio.fail_after(60):
            while (await batches.show(made.instance_id)).state != "running":
                await a_moment()
        await batches.cancel(made.instance_id)
        view = await batches.wait(made.instance_id, timeout_s=60)
    finally:
        await batches.limit("register", item_rate=None)
    assert (early.value.code, view.state) == ("state", "cancelled")
    rows = await rows_of(await batches.sheet(made.instance_id, tmp_path / "cancelled.csv", status="cancelled"))
    assert (len(rows), list(rows[0][1])) == (view.counts.cancelled, ["sku", "price"])
    whole = await rows_of(await batches.sheet(made.instance_id, tmp_path / "whole.csv"))
    assert len(whole) == 1_200
    empty = await batches.submit(UNSERVED, {"n": 1})
    await batches.cancel(empty.instance_id)
    await batches.wait(empty.instance_id, timeout_s=60)
    with pytest.raises(NotAccepted, match="none of its items is known"):
        await batches.sheet(empty.instance_id, tmp_path / "none.csv")
    with pytest.raises(UsageError, match=r"use \.xlsx, \.csv or \.jsonl"):
        await batches.sheet(empty.instance_id, tmp_path / "none.pdf")


async def test_a_row_is_retried_and_asked_about_by_its_number(batches: Batches, tmp_path: Path) -> None:
    path = tmp_path / "products.csv"
    await anyio.Path(path).write_text("sku,price\nA1,1\n\nA2,-1\nA3,-1\n", encoding="utf-8")
    made = await batches.submit("register", file=path)
    view = await batches.wait(made.instance_id, timeout_s=30)
    assert [each.partition(":")[0] for each in view.reasons] == ["row 4", "row 5"]
    why = await batches.why(made.instance_id, row=5)
    assert (why.item, why.row, why.reason) == (2, 5, 'it has ended: failed, "a price below zero"')
    again = await batches.retry(made.instance_id, rows=[5])
    assert [each.partition(":")[0] for each in again.reasons] == ["row 4"]
    view = await batches.wait(made.instance_id, timeout_s=30)
    assert (view.passes, view.counts.failed) == (2, 2)
    for row in (1, 3, 6):
        with pytest.raises(NotAccepted, match=f"row {row}: .* has no such row"):
            await batches.retry(made.instance_id, rows=[row])
    count = await batches.submit("count", {"n": 2})
    await batches.wait(count.instance_id, timeout_s=30)
    with pytest.raises(NotAccepted, match="no rows of a sheet"):
        await batches.why(count.instance_id, row=2)


async def test_a_ragged_row_fails_alone(batches: Batches, tmp_path: Path) -> None:
    path = tmp_path / "products.csv"
    await anyio.Path(path).write_text("sku,price\nA1,1\nA2,2,spare\nA3\n", encoding="utf-8")
    made = await batches.submit("register", file=path)
    view = await batches.wait(made.instance_id, timeout_s=30)
    ends = [(each.row, each.status, each.info) async for each in batches.items(made.instance_id)]
    assert (view.state, ends[0][1]) == ("done", "ok")
    assert ends[1] == (3, "failed", "a value in column C, which has no name in the first row")
    assert ends[2][:2] == (4, "failed")
    rows = await rows_of(await batches.result(made.instance_id, tmp_path / "result.xlsx"))
    assert list(rows[0][1]) == ["row", "sku", "price", "status", "reason"]


@pytest.mark.parametrize("kind", KINDS)
async def test_lists_and_objects_fit_their_fields_and_go_back(batches: Batches, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "nested.jsonl"
    line = '{"sku":"A","tags":["a","b"],"sizes":{"S":1},"note":["x"]}'
    await anyio.Path(path).write_text(f'{line}\n{{"sku":"B","tags":[]}}\n')
    made = await batches.submit("nested", file=path)
    await batches.wait(made.instance_id, timeout_s=30)
    ends = [(each.status, each.info) async for each in batches.items(made.instance_id)]
    seen = ["A", ["a", "b"], {"S": 1}, '["x"]']
    assert ends == [("failed", str(seen)), ("failed", "['B', [], {}, '']")]
    sheet = await batches.sheet(made.instance_id, tmp_path / f"failed.{kind}", status="failed")
    again = await batches.submit("nested", file=sheet)
    await batches.wait(again.instance_id, timeout_s=30)
    assert [(each.status, each.info) async for each in batches.items(again.instance_id)] == ends


async def test_a_split_of_ones_own_reads_a_sheet(batches: Batches, sheet: Path) -> None:
    made = await batches.submit("skus", file=sheet)
    view = await batches.wait(made.instance_id, timeout_s=30)
    assert (view.state, view.items, view.counts.succeeded) == ("done", ROWS, ROWS)


async def test_what_is_over_is_deleted_and_what_runs_is_not(
    batches: Batches, link: Connection, sheet: Path, tmp_path: Path
) -> None:
    made = await batches.submit("register", file=sheet, id="gone")
    await batches.wait(made.instance_id, timeout_s=30)
    assert (await batches.delete("gone")).state == "done"
    assert await uploads(link, "gone") == []
    for ask in (batches.delete, batches.show, batches.retry):
        with pytest.raises(NotAccepted) as unknown:
            await ask("gone")
        assert (unknown.value.code, unknown.value.field) == ("not_found", "id")
    again = await batches.submit("register", file=sheet, id="gone")
    assert again.created_ms > made.created_ms
    assert (await batches.wait("gone", timeout_s=30)).counts.succeeded == ROWS - 8
    running = await batches.submit(UNSERVED, {"n": 1})
    with pytest.raises(NotAccepted, match="cancel it first") as refused:
        await batches.delete(running.instance_id)
    assert refused.value.code == "state"
    await batches.cancel(running.instance_id)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 no zip at all", ""),
        (b"\xd0\xcf\x11\xe0 an old workbook", "save it as xlsx"),
        (b"%PDF-1.7", "a PDF"),
        (b'sku,price\n"A1,never closed\n', ""),
        (b"sku,sku\n1,2\n", ""),
    ],
)
async def test_a_broken_sheet_fails_with_the_reason(
    batches: Batches, tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "broken.csv"
    path.write_bytes(content)
    made = await batches.submit("register", file=path)
    view = await batches.wait(made.instance_id, timeout_s=60)
    assert view.state == "failed", view
    assert says in view.reason
    assert view.reason


async def test_what_cannot_be_sent_is_not_sent(batches: Batches, link: Connection, sheet: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAccepted) as unknown:
        await batches.submit("nobody", file=sheet, id="unsent")
    assert unknown.value.code == "not_found"
    with (tmp_path / "huge.csv").open("wb") as huge:
        huge.truncate(200 * 1024 * 1024 + 1)
    with pytest.raises(UsageError, match="at most"):
        await batches.submit("register", file=tmp_path / "huge.csv", id="unsent")
    with pytest.raises(UsageError, match="JSON"):
        await batches.submit("count", object())
    assert await uploads(link, "unsent") == []


async def test_a_result_that_cannot_be_written_is_told_by_its_place(batches: Batches, tmp_path: Path) -> None:
    sheet = tmp_path / "p.csv"
    sheet.write_text("sku,price\nA1,1\n")
    made = await batches.submit("register", file=sheet)
    assert (await batches.wait(made.instance_id, timeout_s=30)).state == "done"
    with pytest.raises(UsageError, match="a directory; name the file"):
        await batches.result(made.instance_id, tmp_path)
    with pytest.raises(UsageError, match="there is no directory"):
        await batches.result(made.instance_id, tmp_path / "none" / "result.xlsx")
    assert os.listdir(tmp_path) == ["p.csv"]


async def test_limits_are_changed_one_by_one(batches: Batches) -> None:
    changed = await batches.limit("odd", item_rate=5, main_concurrency=2)
    assert (changed.limits.item_rate, changed.limits.main_concurrency) == (5, 2)
    changed = await batches.limit("odd", item_rate=None)
    assert (changed.limits.item_rate, changed.limits.main_concurrency) == (0, 2)
