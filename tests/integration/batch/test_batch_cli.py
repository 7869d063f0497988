"""`penstock batch`, as somebody types it: a sheet in, its rows looked at, a sheet out."""

import logging
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from penstock.admin.records import Records
from penstock.node.session import Session
from streams.errors import Refused
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.topology.specs import batch_consumers
from streams.topology.topology import ensure_consumer
from tests.support.batch_node import UNSERVED, BatchNode
from tests.support.batches import LONG_S
from tests.support.cli import CommandLine
from tests.support.command import node as process
from tests.support.moments import a_moment


@pytest.fixture
async def penstock(node: BatchNode, link: Connection) -> AsyncIterator[CommandLine]:
    """The command line on the node's installation; what it does to logging is undone."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    async with Publisher(link) as publisher:
        yield CommandLine(node.server, Records(Session(link, publisher)))
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    path = tmp_path / "products.csv"
    path.write_text("sku,price\nA1,10\nA2,-1\nA7,3\n", encoding="utf-8")
    return path


async def test_a_sheet_is_handed_in_followed_and_its_result_fetched(
    penstock: CommandLine, sheet: Path, tmp_path: Path
) -> None:
    done = (await penstock("batch", "submit", str(sheet), "--task", "register", "--id", "cli-1", "--wait")).ok()
    assert "done, 3 of 3 items, 1 succeeded, 2 failed" in done.out
    assert "a price below zero" in done.out
    assert "result.xlsx" in done.out
    failed = (await penstock("batch", "items", "cli-1", "--failed", "--json")).ok().json()
    assert [item["index"] for item in failed["items"]] == [1, 2]
    table = (await penstock("batch", "items", "cli-1", "--most", "1")).ok().out
    assert "succeeded" not in table
    assert "--cursor 0.1" in table
    out = tmp_path / "fate.xlsx"
    (await penstock("batch", "result", "cli-1", "-o", str(out))).ok()
    assert out.read_bytes().startswith(b"PK")
    other = await penstock("batch", "result", "cli-1", "-o", str(out.with_suffix(".csv")))
    assert (other.code, "the file is result.xlsx; name it so" in other.err) == (2, True)
    again = (await penstock("batch", "retry", "cli-1", "--item", "2", "--wait", "--json")).ok().json()
    assert (again["passes"], again["state"]) == (2, "done")
    shown = (await penstock("batch", "show", "cli-1", "--watch")).ok()
    assert "pass 2" in shown.out


async def test_a_sheet_read_by_a_guess_says_so(penstock: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "products.csv"
    path.write_bytes("sku,price\n\u8336\u58f6,3\n".encode("gb18030"))
    (await penstock("batch", "submit", str(path), "--task", "register", "--id", "cli-guess", "--wait")).ok()
    assert "read as GB 18030; if letters are wrong" in (await penstock("batch", "show", "cli-guess")).ok().out


async def test_a_sheet_is_looked_at_before_it_runs(penstock: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "products.csv"
    path.write_text("sku,price,colour\n007,10,red\nA2,cheap,\nA7,,blue\n", encoding="utf-8")
    look = await penstock("batch", "submit", str(path), "--task", "register", "--id", "cli-look", "--check")
    assert look.code == 1
    lines = [line.split() for line in look.out.splitlines()]
    assert ["column", "type", "row", "2", "row", "3", "row", "4"] in lines
    assert ["sku", "str", "007", "A2", "A7"] in lines
    assert ["price", "float", "10.0", "cheap"] in lines
    assert ["colour", "not", "used", "blue"] in lines
    assert "row 3: the item does not fit: Expected `float`, got `str` - at `$.price`" in look.out
    assert "2 of 3 rows would fail before the task's code runs; no batch was made" in look.out
    assert (await penstock("batch", "show", "cli-look")).code == 1
    path.write_text("sku\nA1\n", encoding="utf-8")
    found = (await penstock("batch", "submit", str(path), "--task", "register", "--check", "--json")).json()
    assert found["missing"] == [{"name": "price", "type": "float", "is_needed": True}]
    assert [fault["row"] for fault in found["faults"]] == [2]
    path.write_text("sku,price\nA1,10\n", encoding="utf-8")
    (await penstock("batch", "submit", str(path), "--task", "register", "--check")).ok()
    path.write_bytes(b"%PDF-1.4")
    refused = await penstock("batch", "submit", str(path), "--task", "register", "--check")
    assert (refused.code, "it is a PDF" in refused.err) == (2, True)
    counted = (await penstock("batch", "submit", "--task", "count", "--input", '{"n": 1}', "--check")).ok()
    assert "count has a split of its own" in counted.out


async def test_the_nearest_task_is_named(penstock: CommandLine) -> None:
    for command in (
        ["submit", "--task", "regster", "--input", "1"],
        ["submit", "--task", "regster", "--input", "1", "--callback", "none"],
        ["task", "regster"],
        ["task", "regster", "slots=1"],
    ):
        refused = await penstock("batch", *command)
        assert (refused.code, refused.err) == (1, "penstock: no task 'regster'; did you mean register?\n")
    unlike = await penstock("batch", "task", "zzz")
    assert (unlike.code, "start the application that serves it" in unlike.err) == (1, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("submit", "--task", "register", "--input", "1"), "file: the items of register are the rows of a file"),
        (("list", "--state", "doen"), "state 'doen': is none; did you mean done?"),
        (("task", "count", "item_rate=-1"), "item_rate -1: Expected `float` >= 0.0"),
        (("submit", "/", "--task", "register"), "/: a directory; name a file"),
    ],
)
async def test_a_wrong_value_is_named(penstock: CommandLine, command: tuple[str, ...], said: str) -> None:
    refused = await penstock("batch", *command)
    assert (refused.code, said in refused.err) == (2, True), refused.err


async def test_ctrl_c_says_that_a_batch_goes_on(penstock: CommandLine, node: BatchNode) -> None:
    server = ("--nats", node.server.url, "--namespace", penstock.records.namespace.name)
    (await penstock("batch", "submit", "--task", UNSERVED, "--input", "1", "--id", "cli-stop")).ok()
    command = ("-m", "penstock", "batch", "show", "cli-stop", "--watch")
    async with process(*server, command=command) as watching:
        with anyio.fail_after(60):
            while not watching.text:
                await watching.news()
        assert await watching.end(signal.SIGINT) == 130
    said = "penstock: stopped; the batch goes on; `penstock batch show cli-stop --watch` follows it"
    assert watching.text.splitlines()[1:] == [said]


async def test_an_input_alone_is_handed_in_and_steered(penstock: CommandLine) -> None:
    arguments = ("batch", "submit", "--task", UNSERVED, "--param", "shop=s1", "--tenant", "cli", "--id", "cli-2")
    assert (await penstock(*arguments, "--json")).ok().json()["instance_id"] == "cli-2"
    assert f"no process serves {UNSERVED}" in (await penstock("batch", "show", "cli-2")).ok().out
    assert "cli-2: paused" in (await penstock("batch", "pause", "cli-2")).ok().out
    with anyio.fail_after(60):  # lists are a moment behind
        while UNSERVED not in (await penstock("batch", "list", "--tenant", "cli", "--state", "paused")).ok().out:
            await a_moment()
    assert "paused" not in (await penstock("batch", "resume", "cli-2")).ok().out
    assert "cancelled" in (await penstock("batch", "cancel", "cli-2")).ok().out
    ended = await penstock("batch", "show", "cli-2", "--watch")
    assert (ended.code, "cancelled" in ended.out) == (1, True)
    unsure = await penstock("batch", "delete", "cli-2")
    assert (unsure.code, "Not asked, since this is no terminal: add --yes" in unsure.err) == (2, True)
    assert "cli-2: deleted, it was cancelled" in (await penstock("batch", "delete", "cli-2", "--yes")).ok().out


async def test_a_program_learns_where_a_list_goes_on(penstock: CommandLine) -> None:
    names = ["cli-page-1", "cli-page-2", "cli-page-3"]
    for name in names:
        (await penstock("batch", "submit", "--task", UNSERVED, "--input", "1", "--id", name, "--tenant", "pages")).ok()
    pages = ("batch", "list", "--tenant", "pages", "--json")
    with anyio.fail_after(60):  # lists are a moment behind
        while len((whole := (await penstock(*pages)).ok()).json()) < len(names):
            await a_moment()
    assert not whole.err
    first = (await penstock(*pages, "--most", "2")).ok()
    told, _, place = first.err.rpartition(" --after ")
    assert told == "there may be more:"
    second = (await penstock(*pages, "--most", "2", "--after", place.strip())).ok()
    assert [one["instance_id"] for one in first.json() + second.json()] == names[::-1]
    assert not second.err


async def test_why_names_the_consumer_that_the_server_refuses(penstock: CommandLine, link: Connection) -> None:
    """Somebody looks at the splits of the task by a consumer of his own."""
    steps, _ = batch_consumers(link.namespace, "count")
    look = replace(steps, name="look", about="a look", idle_s=0.0)
    with anyio.fail_after(LONG_S):
        while True:
            with suppress(Refused):  # the node makes its own again at once, and not so soon a second time
                await link.api(f"CONSUMER.DELETE.{steps.stream}.{steps.name}")
            with suppress(Refused):
                await ensure_consumer(link, look)
                break
        (await penstock("batch", "submit", "--task", "count", "--input", '{"n": 1}', "--id", "cli-refused")).ok()
        while "get no splits" not in (why := (await penstock("why", "cli-refused")).ok().out):
            await a_moment()
        assert why.startswith("batch cli-refused is splitting: its processes get no splits and reduces of its task")
        assert "filtered consumer not unique" in why
        await link.api(f"CONSUMER.DELETE.{look.stream}.{look.name}")
        while "it is over: done" not in (await penstock("why", "cli-refused")).ok().out:
            await a_moment()


async def test_a_batch_is_handed_in_for_later_and_after_another(penstock: CommandLine) -> None:
    submit = ("batch", "submit", "--task", "count", "--input", '{"n": 1}')
    first = (await penstock(*submit, "--id", "cli-first", "--at", "2035-03-01T02:00", "--tz", "Asia/Shanghai")).ok()
    assert "cli-first: pending, begins at 2035-02-28T18:00:00Z" in first.out
    after = ("--after", "cli-first", "--after-state", "clean", "--delay", "1d", "--tenant", "later")
    second = (await penstock(*submit, "--id", "cli-second", *after, "--json")).ok().json()
    assert (second["after"], second["after_state"], second["due_ms"] > 0) == ("cli-first", "clean", True)
    with anyio.fail_after(60):  # lists are a moment behind
        while "begins" not in (listed := (await penstock("batch", "list", "--tenant", "later")).ok().out):
            await a_moment()
    assert "when cli-first is done and no item of it failed, at 20" in listed
    assert "begins at 2035-02-28T18:00:00Z" in (await penstock("batch", "show", "cli-first")).ok().out
    assert "it begins when cli-first is done" in (await penstock("why", "cli-second")).ok().out
    (await penstock(*submit, "--id", "cli-now", "--after", "cli-first")).ok()
    assert "cli-now: " in (await penstock("batch", "start", "cli-now")).ok().out
    assert "done" in (await penstock("batch", "show", "cli-now", "--watch")).ok().out
    (await penstock("batch", "cancel", "cli-first")).ok()
    with anyio.fail_after(60):
        while "failed" not in (shown := (await penstock("batch", "show", "cli-second")).ok().out):
            await a_moment()
    assert "which is cancelled; retry that one, and then this one" in shown
    past = (await penstock(*submit, "--at", "2020-03-01T02:00Z")).ok().out
    assert past.startswith("--at 2020-03-01T02:00Z: is past, so it begins at once\n")
    assert (await penstock(*submit, "--delay", "1d", "--at", "2035-03-01T02:00Z")).code == 2
    assert (await penstock(*submit, "--after-state", "clean")).code == 2
    assert "no batch 'nobody'" in (await penstock(*submit, "--after", "nobody")).err


async def test_a_callback_is_named_and_shown(penstock: CommandLine) -> None:
    url = "https://shop.example.com/told?key=7"
    arguments = ("submit", "--task", "count", "--input", '{"n": 2}', "--id", "cli-3", "--callback", url, "--wait")
    (await penstock("batch", *arguments)).ok()
    shown = (await penstock("batch", "show", "cli-3")).ok().out
    assert "callback https://shop.example.com/told: done: " in shown


async def test_a_tasks_limits_are_shown_and_changed(penstock: CommandLine) -> None:
    assert UNSERVED in (await penstock("batch", "tasks")).ok().out
    changed = (await penstock("batch", "task", UNSERVED, "item_rate=2.5", "main_rate=3")).ok().out
    assert "item_rate = 2.5" in changed
    slotted = (await penstock("batch", "task", UNSERVED, "slots=2", "slot_key=merchant.id")).ok().out
    assert "slots = 2" in slotted
    assert "slot_key = merchant.id" in slotted
    limits = (await penstock("batch", "task", UNSERVED, "item_rate=", "--json")).ok().json()["limits"]
    slots = {"slots": 2, "slot_key": "merchant.id", "when_full": "queue"}
    rates = {"main_concurrency": 10, "main_rate": 3.0, "item_rate": 0.0, "item_concurrency": 0}
    assert limits == {**rates, **slots, "zone": "", "region_key": ""}
    assert "main_rate = 3" in (await penstock("batch", "task", UNSERVED)).ok().out
    assert "streaming" not in changed
    assert "streaming: items run before the split has ended" in (await penstock("batch", "task", "odd")).ok().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("submit",), 2, "--task"),
        (("submit", "--task", "register"), 2, "give a FILE, or --input"),
        (("submit", "nowhere.csv", "--task", "register"), 2, "no such file"),
        (("submit", "--task", "nobody", "--input", "1"), 1, "nobody"),
        (("submit", "--task", "count", "--input", "{"), 2, "--input"),
        (("submit", "--task", "count", "--input", "1", "--encoding", "klingon"), 2, "not one of utf-8"),
        (("submit", "--task", "count", "--param", "shop"), 2, "NAME=VALUE"),
        (("submit", "--task", "count", "--input", "1", "--id", "a b"), 2, "a b"),
        (("submit", "--task", "count", "--input", "1", "--callback", "http://10.0.0.1/"), 2, "use https"),
        (("show", "nobody"), 1, "no batch"),
        (("items", "nobody", "--cursor", "x"), 1, "no batch"),
        (("result", "nobody"), 1, "no batch"),
        (("retry", "nobody"), 1, "no batch"),
        (("delete", "nobody"), 1, "no batch"),
        (("task", "nobody"), 1, "nobody"),
        (("task", UNSERVED, "item_rate=fast"), 2, "a number is needed"),
        (("task", UNSERVED, "item_rate=inf"), 2, "a number is needed"),
        (("submit", "--task", "count", "--input", "1", "--tenant", "x y.z"), 2, "tenant 'x y.z'"),
        (("task", UNSERVED, "item_rat=1"), 2, "item_rat"),
        (("task", UNSERVED, "when_full=wait"), 2, "when_full"),
        (("task", UNSERVED, "slot_key=a..b"), 2, "slot_key"),
    ],
)
async def test_what_is_wrong_is_told(penstock: CommandLine, arguments: tuple[str, ...], code: int, says: str) -> None:
    told = await penstock("batch", *arguments)
    assert (told.code, says in told.err) == (code, True), told.err
    assert "Traceback" not in told.err


async def test_a_person_asks_why_something_does_not_run(penstock: CommandLine) -> None:
    (await penstock("jobs", "add", "mail", "1", "--id", "why-1", "--delay", "1h")).ok()
    (await penstock("batch", "submit", "--task", UNSERVED, "--input", "1", "--id", "why-1")).ok()
    found = (await penstock("why", "why-1", "--json")).ok().json()
    assert [(each["kind"], each["code"]) for each in found] == [("job", "due"), ("batch", "nobody")]
    told = (await penstock("why", "why-1", "--topic", "mail")).ok().out
    assert told.startswith("job mail/why-1 is delayed: it is not due yet, until ")
    (await penstock("jobs", "topic", "mail", "--pause")).ok()
    (await penstock("jobs", "add", "mail", "1", "--id", "why-2")).ok()
    with anyio.fail_after(60):  # the node's desk hears of the pause a moment later
        while "its topic is paused" not in (await penstock("why", "why-2")).ok().out:
            await a_moment()
    for unknown in ("why-3", "none/none", "not an id"):
        refused = await penstock("why", unknown)
        assert (refused.code, "no job, batch, source, slice or row of a flow is called so" in refused.err) == (1, True)
