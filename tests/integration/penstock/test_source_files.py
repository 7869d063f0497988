"""Many sources by one command: checked whole, then written, compared with what is there, and the same again."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest

from actors.fetch.overview import Overview
from actors.fetch.rules.ledger import Ledger, first_ledger
from actors.fetch.source_import import AT_ONCE, Imported, SourceRow
from actors.fetch.sources import SourceKey
from penstock.admin.source_moves import remove
from streams.buckets.entries import Entry
from streams.clock import now_ms
from tests.support.cli import CommandLine

ACCOUNT = {"base_url": "http://127.0.0.1:9"}


def row(source: str, **fields: object) -> dict[str, object]:
    shop = source.partition("/")[2]
    return {"source": source, "adapter": "mall", "account": {**ACCOUNT, "shop": shop}, **fields}


def write(folder: Path, *rows: dict[str, object]) -> str:
    path = folder / "shops.jsonl"
    path.write_text("".join(f"{msgspec.json.encode(each).decode()}\n" for each in rows))
    return str(path)


async def test_a_file_is_added_and_exported_and_the_same_again_changes_nothing(
    cli: CommandLine, tmp_path: Path
) -> None:
    count = AT_ONCE + 20
    rows = [row(f"bulk/s{n}", settings={"retries": 7}, start="-2d", paused=n % 2 == 0) for n in range(count)]
    file = write(tmp_path, *rows)
    tried = (await cli("sources", "import", file, "--dry-run", "--json")).ok().json()
    assert (tried["added"], tried["is_trial"], await cli.records.sources("bulk.*")) == (count, True, {})
    told = (await cli("sources", "import", file, "--json")).ok().json()
    assert (told["added"], told["same"], told["faults"], told["is_trial"]) == (count, 0, [], False)
    ledgers = await cli.records.all_ledgers("bulk.*")
    assert {str(source): ledger.state for source, ledger in ledgers.items() if isinstance(ledger, Ledger)} == {
        f"bulk/s{n}": "running" if n % 2 else "paused" for n in range(count)
    }
    assert (await cli.records.settings_of(SourceKey("bulk", "s3"))).retries == 7
    record = await cli.records.source(SourceKey("bulk", "s3"))
    level = await cli.records.settings.get("fetch.bulk.s3")
    assert record is not None
    assert level is not None
    assert record.settings_revision == level.revision
    again = (await cli("sources", "import", file, "--json")).ok().json()
    assert (again["added"], again["same"], again["differing"]) == (0, count, [])
    for form in ("csv", "jsonl", "toml"):
        exported = (await cli("sources", "export", "--form", form)).ok().out
        copy = tmp_path / f"copy.{form}"
        copy.write_text(exported)
        same = (await cli("sources", "import", str(copy), "--json")).ok().json()
        assert (same["added"], same["differing"]) == (0, [])
        assert same["same"] >= count


async def test_a_bad_row_is_told_by_its_field_and_nothing_is_written(cli: CommandLine, tmp_path: Path) -> None:
    later = f"{(now_ms() + 86_400_000) // 1000}"
    bad: list[tuple[dict[str, object], str]] = [
        (row("bad/s1"), ""),
        (row("bad"), "source"),
        (row("default/s1"), "source"),
        (row("bad/s1"), "source"),
        (row("bad/s2", adapter="mal"), "adapter"),
        (row("bad/s3", account=ACCOUNT), "account.shop"),
        (row("bad/s4", account={**ACCOUNT, "shop": "s", "token": "t0ken-t0ken"}), "account.token"),
        (row("bad/s5", settings={"retries": -1}), "settings.retries"),
        (row("bad/s6", settings={"retires": 1}), "settings.retires"),
        (row("bad/s7", settings={"slice": "1s"}), "settings.overlap_before"),
        (row("bad/s8", settings={"start": "-1d"}), "settings.start"),
        (row("bad/s9", start=later), "start"),
        (row("bad/t1", shop="t1"), "shop"),
    ]
    told = await cli("sources", "import", write(tmp_path, *(each for each, _ in bad)), "--json")
    faults = [(fault["row"], fault["field"]) for fault in told.json()["faults"]]
    assert faults == [(number, field) for number, (_, field) in enumerate(bad, start=1) if field]
    assert (told.code, told.json()["is_trial"], await cli.records.sources("bad.*")) == (1, True, {})
    shown = await cli("sources", "import", write(tmp_path, *(each for each, _ in bad)))
    assert "row 8: settings.retries: setting retries: -1 is not within" in shown.out
    assert "12 rows cannot be taken, so nothing was written" in shown.out


async def test_what_differs_is_listed_and_changed_only_when_asked_for(cli: CommandLine, tmp_path: Path) -> None:
    (await cli("sources", "import", write(tmp_path, row("diff/s1", settings={"retries": 3})))).ok()
    file = write(
        tmp_path, row("diff/s1", settings={"retries": 4}, account={**ACCOUNT, "shop": "other"}), row("diff/s2")
    )
    told = await cli("sources", "import", file, "--json")
    differing = [{"row": 1, "source": "diff/s1", "fields": ["account.shop", "settings.retries"]}]
    assert (told.code, told.json()["added"], told.json()["differing"]) == (1, 1, differing)
    assert (await cli.records.settings_of(SourceKey("diff", "s1"))).retries == 3
    changed = (await cli("sources", "import", file, "--update", "--json")).ok().json()
    assert (changed["added"], changed["changed"], changed["same"]) == (0, 1, 1)
    record = await cli.records.source(SourceKey("diff", "s1"))
    assert record is not None
    assert record.account["shop"] == "other"
    assert (await cli.records.settings_of(SourceKey("diff", "s1"))).retries == 4


async def test_a_source_that_was_kept_goes_on_with_its_ledger(cli: CommandLine, tmp_path: Path) -> None:
    source = SourceKey("kept", "s1")
    await cli.records.create_ledger(source, first_ledger(60_000))
    (await cli("sources", "import", write(tmp_path, row("kept/s1", start="-1d")))).ok()
    ledger = await cli.records.ledger(source)
    assert ledger is not None
    assert ledger.start_ms == 60_000


@pytest.mark.parametrize("arguments", [("nowhere.csv",), ("/dev/null",), ("/dev/null", "--form", "xml")])
async def test_a_file_that_cannot_be_read_is_told(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    told = await cli("sources", "import", *arguments)
    assert told.code == 2


async def test_two_imports_of_one_file_at_once_are_as_one_after_the_other(cli: CommandLine) -> None:
    """A caller whose answer was lost sends the same again, while the first import still writes."""
    count = 4 * AT_ONCE
    rows = [msgspec.convert(row(f"bulk/s{n}", settings={"retries": 7}, start="-2d"), SourceRow) for n in range(count)]
    done: list[Imported] = []

    async def run() -> None:
        done.append(await cli.records.importer.run(rows))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(run)
    assert [(each.faults, each.differing) for each in done] == [([], [])] * 3
    assert sum(each.added for each in done) == count
    assert [each.added + each.same for each in done] == [count] * 3
    ledgers, records = await cli.records.all_ledgers("bulk.*"), await cli.records.sources("bulk.*")
    assert (len(ledgers), len(records)) == (count, count)


async def test_what_another_import_writes_otherwise_is_not_counted_as_added(cli: CommandLine) -> None:
    def rows_of(retries: int) -> list[SourceRow]:
        rows = [row(f"bulk/s{n}", settings={"retries": retries}) for n in range(2 * AT_ONCE)]
        return [msgspec.convert(each, SourceRow) for each in rows]

    done: dict[int, Imported] = {}

    async def run(retries: int) -> None:
        done[retries] = await cli.records.importer.run(rows_of(retries))

    async with anyio.create_task_group() as tasks:
        for retries in (3, 7):
            tasks.start_soon(run, retries)
    assert sum(each.added for each in done.values()) == 2 * AT_ONCE
    assert {len(each.differing) + each.added + each.same for each in done.values()} == {2 * AT_ONCE}
    assert [each.faults for each in done.values()] == [[], []]


async def test_a_source_that_is_removed_while_an_import_runs_is_not_put_back(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = (msgspec.convert(row("gone/s1", settings={"retries": n}), SourceRow) for n in (3, 4))
    await cli.records.importer.run([first])
    importer = cli.records.importer
    known = await importer._read()

    async def read_late() -> object:
        """Read what was there before the removal, once."""
        monkeypatch.undo()
        await remove(cli.records, SourceKey("gone", "s1"), keeps_ledger=False)
        return known

    monkeypatch.setattr(importer, "_read", read_late)
    done = await importer.run([other], is_updating=True)
    assert [(each.row, each.field) for each in done.faults] == [(1, "source")]
    assert "gone/s1 was removed" in done.faults[0].problem
    assert (done.added, done.changed, await cli.records.sources("gone.*")) == (0, 0, {})
    assert (await cli.records.importer.run([other])).added == 1


async def test_pages_of_sources_are_the_list_whatever_was_removed(cli: CommandLine) -> None:
    desk, records = cli.records.source_desk, cli.records
    rows = [SourceRow(source=f"page/s{n:02d}", adapter="mall", account={**ACCOUNT, "shop": "s"}) for n in range(30)]
    assert (await records.importer.run(rows)).added == len(rows)
    for n in (3, 4, 5, 6, 7, 29):
        await records.settings.delete(f"source.page.s{n:02d}")
        if n != 5:  # the ledger of a removed source may be kept
            await records.ledgers.delete(f"page.s{n:02d}")
    await records.create_ledger(SourceKey("page", "alone"), first_ledger(60_000))
    whole = await desk.overviews("page.*")
    states = {one.source: one.state for one in whole}
    assert len(states) == 26
    assert states["page/alone"] == states["page/s05"] == "removed"
    for limit in (1, 3, 26, 100):
        found, after = list[Overview](), ""
        while page := await desk.overviews("page.*", after=after, limit=limit):
            assert len(page) <= limit
            found += page
            after = page[-1].source
        assert [(one.source, one.state, one.adapter) for one in found] == [
            (one.source, one.state, one.adapter) for one in whole
        ]
    exported = [each for each in await desk.rows() if each.source >= "page/"]
    for limit in (1, 3, 100):
        rows, after = list[SourceRow](), "page/"
        while some := await desk.rows(after=after, limit=limit):
            assert len(some) <= limit
            rows += some
            after = some[-1].source
        assert rows == exported


async def test_a_page_of_sources_reads_no_other_ledger(cli: CommandLine) -> None:
    """One that is broken by hand is read with its page, and told there alone."""
    rows = [SourceRow(source=f"one/s{n}", adapter="mall", account={**ACCOUNT, "shop": "s"}) for n in range(4)]
    assert (await cli.records.importer.run(rows)).added == len(rows)
    read = list[str]()
    entries_of = cli.records.ledgers.entries_of

    async def noted(keys: Sequence[str]) -> list[Entry[bytes]]:
        read.extend(keys)
        return await entries_of(keys)

    cli.records.source_desk._ledgers.entries_of = noted  # type: ignore[method-assign,assignment]
    page = await cli.records.source_desk.overviews("one.*", after="one/s0", limit=2)
    assert [one.source for one in page] == ["one/s1", "one/s2"]
    assert read == ["one.s1", "one.s2"]
