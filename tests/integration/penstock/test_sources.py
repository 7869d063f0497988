"""Sources by command, on a real server: what is stored, what is refused, what goes on and what begins anew."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import structs

from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, Outage, first_ledger
from actors.fetch.rules.slices import Slice
from actors.fetch.sources import SourceKey, SourceRecord
from actors.runtime.membership import NodeRecord
from penstock.admin.sources import SourceAdded, Wanted, add
from streams.clock import now_ms
from streams.messages.fetch import SliceCompleted
from streams.publish.publisher import Outgoing
from streams.topology.specs import sink_consumer
from streams.topology.topology import ensure_consumer
from tests.support.cli import Answer, CommandLine
from tests.support.moments import a_moment

SHOP = SourceKey("mall", "s1")
ACCOUNT = ("--account", "base_url=http://127.0.0.1:9", "--account", "shop=s1")
ADD = ("sources", "add", "mall/s1", "--adapter", "mall", *ACCOUNT)
ACME = """
name = "acme"
[request]
path = "/orders"
params = { from = "{window.start}", to = "{window.end}", shop = "{account.shop}" }
[record]
rows = "orders"
key = "id"
"""


async def record_of(cli: CommandLine, source: SourceKey = SHOP) -> SourceRecord:
    record = await cli.records.source(source)
    assert record is not None
    return record


async def ledger_of(cli: CommandLine, source: SourceKey = SHOP) -> Ledger:
    ledger = await cli.records.ledger(source)
    assert ledger is not None
    return ledger


async def set_ledger(cli: CommandLine, ledger: Ledger) -> None:
    await cli.records.move(SHOP, lambda _before: (ledger, None))


async def has_consumer(cli: CommandLine, name: str) -> bool:
    stream = cli.records.namespace.stream("SLICES")
    listed = await cli.records.connection.api(f"CONSUMER.NAMES.{stream}")
    return name in (listed.get("consumers") or [])


def completed(slice_id: str) -> SliceCompleted:
    return SliceCompleted(
        platform="mall",
        source="s1",
        slice_id=slice_id,
        start_ms=0,
        end_ms=1000,
        attempt=1,
        fence=1,
        node="n1",
        started_ms=0,
        finished_ms=1,
        rows=0,
        new_rows=0,
        requests=1,
        is_proven=True,
    )


async def test_an_added_source_has_all_its_records_and_the_last_names_its_settings(cli: CommandLine) -> None:
    told = (await cli(*ADD, "--start", "2026-01-31T08:00:00+08:00", "--set", "slice=30s", "--pin", "cn", "--json")).ok()
    assert (told.json()["is_new"], told.json()["ledger"]["frontier"]) == (True, "2026-01-31T00:00:00Z")
    level = await cli.records.settings.get("fetch.mall.s1")
    assert level is not None
    assert msgspec.json.decode(level.value) == {"slice": "30s", "pin": "cn", "start": "2026-01-31T00:00:00Z"}
    record = await record_of(cli)
    assert (record.adapter, record.account["shop"], record.settings_revision) == ("mall", "s1", level.revision)
    assert (await ledger_of(cli)).frontier_ms == 1_769_817_600_000
    assert await has_consumer(cli, "fetch_mall_tail_cn")
    assert await has_consumer(cli, "fetch_mall_back_cn")


async def test_a_source_may_be_added_paused_and_then_nothing_is_cut(cli: CommandLine) -> None:
    told = (await cli(*ADD, "--paused")).ok()
    assert ": added, paused from " in told.out
    ledger = await ledger_of(cli)
    assert (ledger.state, ledger.open) == ("paused", ())
    (await cli("sources", "resume", "mall/s1")).ok()
    (await cli("sources", "remove", "mall/s1", "--keep", "--yes")).ok()
    assert "paused" in (await cli(*ADD, "--paused")).ok().out
    assert (await ledger_of(cli)).state == "paused"


async def test_a_source_without_settings_still_has_a_level_that_nodes_can_wait_for(cli: CommandLine) -> None:
    (await cli(*ADD)).ok()
    level = await cli.records.settings.get("fetch.mall.s1")
    assert level is not None
    assert (level.value, (await record_of(cli)).settings_revision) == (b"{}", level.revision)


async def test_adding_the_same_again_changes_nothing_and_another_is_refused(cli: CommandLine) -> None:
    (await cli(*ADD, "--start", "-1d", "--set", "slice=30s")).ok()
    ledger, record = await ledger_of(cli), await record_of(cli)
    again = (await cli(*ADD, "--start", "-1d", "--set", "slice=30s", "--json")).ok().json()
    assert (again["is_new"], again["is_continued"]) == (False, True)
    other = await cli("sources", "add", "mall/s1", "--adapter", "mall", *ACCOUNT[:2], "--account", "shop=s2")
    assert other.code == 2
    assert "account shop" in other.err
    assert (await cli(*ADD, "--set", "slice=40s")).code == 2
    assert (await cli("sources", "add", "mall/s1", "--adapter", "mall_token", *ACCOUNT)).code == 2
    assert (await ledger_of(cli), await record_of(cli)) == (ledger, record)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--account", "token=swordfish"), "env:NAME"),
        (("--start", "2999-01-01T00:00:00Z"), "in the future"),
        (("--start", "2026-01-31"), "no zone"),
        (("--start", "2026-01-31", "--tz", "Asia/Nowhere"), "time zone"),
        (("--set", "slise=3s"), "did you mean slice"),
        (("--set", "slice=30"), "no unit"),
        (("--set", "retries=-1"), "not within"),
        (("--set", "start=-3d"), "--start"),
        (("--adapter", "no/such/file.toml"), "No such file"),
        (("--adapter", "mal"), "did you mean 'mall'"),
    ],
)
async def test_what_is_refused_at_the_door_leaves_nothing_behind(
    cli: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    told = await cli(*ADD, *arguments, "--json")
    assert told.code == 2
    assert said in told.err
    assert said in told.json()["error"]
    assert await cli.records.settings.entries() == []
    assert await cli.records.ledger(SHOP) is None


async def test_an_adapter_file_is_stored_once_and_replaced_only_on_purpose(cli: CommandLine, tmp_path: Path) -> None:
    file, other = tmp_path / "acme.toml", tmp_path / "other.toml"
    file.write_text(ACME)
    other.write_text(ACME.replace('"/orders"', '"/v2/orders"'))
    for shop in ("s1", "s2"):
        (await cli("sources", "add", f"acme/{shop}", "--adapter", str(file), *ACCOUNT)).ok()
    refused = await cli("sources", "add", "acme/s3", "--adapter", str(other), *ACCOUNT)
    assert (refused.code, "other contents" in refused.err) == (2, True)
    replaced = (await cli("sources", "set", "acme/s1", "--adapter", str(other), "--json")).ok().json()
    assert replaced["changed"] == ["adapter acme: replaced"]
    stored = await cli.records.settings.get("adapter.acme")
    assert stored is not None
    assert msgspec.json.decode(stored.value)["request"]["path"] == "/v2/orders"


async def test_the_nearest_adapter_is_named_a_stored_one_too(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "acme.toml").write_text(ACME)
    added = ("sources", "add", "acme/s1", *ACCOUNT, "--untried", "--adapter")
    (await cli(*added, str(tmp_path / "acme.toml"))).ok()
    for wrong, near in (("mal", "mall"), ("acmee", "acme")):
        refused = await cli("sources", "add", "other/s1", *ACCOUNT, "--adapter", wrong)
        said = f"penstock: there is no adapter '{wrong}' (did you mean '{near}'?)\n"
        assert (refused.code, refused.err) == (2, said)
    (tmp_path / "shops.csv").write_text("source,adapter,account.shop\nacme/s2,acmee,s2\n")
    row = (await cli("sources", "import", str(tmp_path / "shops.csv"))).out
    assert "row 1: adapter: there is no adapter 'acmee' (did you mean 'acme'?)\n" in row


async def test_an_adapter_that_does_not_fit_its_other_sources_is_not_stored(cli: CommandLine, tmp_path: Path) -> None:
    file, other = tmp_path / "acme.toml", tmp_path / "other.toml"
    file.write_text(ACME)
    other.write_text(ACME.replace("{account.shop}", "{account.branch}"))
    for shop in ("s1", "s2"):
        (await cli("sources", "add", f"acme/{shop}", "--adapter", str(file), *ACCOUNT)).ok()
    refused = await cli("sources", "set", "acme/s1", "--adapter", str(other), "--account", "branch=1")
    assert refused.code == 2
    assert "acme/s2" in refused.err
    assert "branch" not in (await record_of(cli, SourceKey("acme", "s1"))).account


async def test_settings_and_account_are_changed_and_told(cli: CommandLine) -> None:
    (await cli(*ADD, "--set", "slice=30s")).ok()
    edit = ("--account", "shop=s9", "--set", "retries=3", "--unset", "slice", "--pin", "eu", "--json")
    changed = (await cli("sources", "set", "mall/s1", *edit)).ok().json()["changed"]
    assert changed == [
        "pin: (not set) -> eu",
        "retries: (not set) -> 3",
        "slice: 30s -> (not set)",
        "account shop changed",
    ]
    assert (await record_of(cli)).account["shop"] == "s9"
    assert (await cli.records.settings_of(SHOP)).pin == "eu"
    assert await has_consumer(cli, "fetch_mall_tail_eu")
    assert (await cli("sources", "set", "mall/s1")).code == 2
    assert (await cli("sources", "set", "mall/s1", "--drop-account", "shop")).code == 2


async def test_a_source_is_paused_and_resumed(cli: CommandLine) -> None:
    (await cli(*ADD)).ok()
    paused = (await cli("sources", "pause", "mall/s1", "--reason", "stocktaking", "--json")).ok().json()
    assert (paused["is_changed"], paused["ledger"]["state"]) == (True, "paused")
    assert (await cli("sources", "pause", "mall/s1", "--json")).ok().json()["is_changed"] is False
    listed = (await cli("sources", "list", "--json")).ok().json()
    assert [(one["source"], one["state"], one["reason"]) for one in listed] == [("mall/s1", "paused", "stocktaking")]
    resumed = (await cli("sources", "resume", "mall/s1", "--by", "kim", "--json")).ok().json()
    assert resumed["ledger"]["state"] == "running"
    shown = (await cli("sources", "show", "mall/s1", "--json")).ok().json()
    assert [(each["kind"], each["by"]) for each in shown["events"]] == [("source_resumed", "kim")]


async def test_a_node_that_ended_long_ago_tends_no_source(cli: CommandLine) -> None:
    """Its record stands there: after a kill of the server such records can show again."""
    (await cli(*ADD)).ok()
    await cli.records.session.bucket("NODES").put("ghost", msgspec.json.encode(NodeRecord(node="ghost", run="x")))
    with anyio.fail_after(60):
        while (await cli("sources", "list", "--json")).ok().json()[0]["node"]:
            await a_moment()
    assert (await cli("nodes", "--json")).ok().json() == []


async def test_a_hint_is_taken_and_joined_or_refused_with_the_reason(cli: CommandLine) -> None:
    (await cli(*ADD, "--start", "-2d")).ok()
    told = (await cli("sources", "look", "mall/s1", "--json")).ok().json()
    assert (told["source"], told["end_ms"], told["is_new"]) == ("mall/s1", None, True)
    assert "with a look that waits already" in (await cli("sources", "look", "mall/s1")).ok().out
    assert "to 20" in (await cli("sources", "look", "mall/s1", "--from", "-10m", "--to", "-5m")).ok().out
    for options, says in (
        (("--from", "2999-01-01T00:00:00Z"), "begins in the future"),
        (("--to", "2999-01-01T00:00:00Z"), "ends in the future"),
        (("--from", "-3d"), "`sources backfill` reads an older one"),
        (("--from", "-5m", "--to", "-5m"), "is empty"),
    ):
        refused = await cli("sources", "look", "mall/s1", *options)
        assert (refused.code, says in refused.err) == (2, True), refused.err
    (await cli("sources", "pause", "mall/s1", "--reason", "stocktaking")).ok()
    refused = await cli("sources", "look", "mall/s1")
    assert "is paused: stocktaking; it reads nothing before `sources resume`" in refused.err


async def test_rewinds_and_backfills_take_moments_as_people_write_them(cli: CommandLine) -> None:
    (await cli(*ADD, "--start", "-2d")).ok()
    now = now_ms()
    await set_ledger(cli, first_ledger(now - now % 1000))
    rewound = (await cli("sources", "rewind", "mall/s1", "-3h", "--json")).ok().json()["ledger"]
    assert (rewound["epoch"], rewound["frontier_ms"] <= now - 3 * 3_600_000 + 60_000) == (2, True)
    told = (await cli("sources", "backfill", "mall/s1", "-1h", "now", "--name", "look", "--json")).ok().json()
    assert told["end_ms"] - told["start_ms"] == 3_600_000
    ledger = await ledger_of(cli)
    assert [(each.name, each.start_ms) for each in ledger.passes] == [("look", told["start_ms"])]
    assert ledger.frontier_ms == rewound["frontier_ms"]
    refused = await cli("sources", "backfill", "mall/s1", "--cancel", "lok")
    assert (refused.code, refused.err) == (2, "penstock: mall/s1: no backfill is called 'lok'; did you mean look?\n")
    (await cli("sources", "backfill", "mall/s1", "--cancel", "look")).ok()
    assert (await ledger_of(cli)).passes == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rewind", "mall/s1", "2999-01-01T00:00:00Z"), "future"),
        (("rewind", "mall/s1", "now"), "watermark"),
        (("rewind", "mall/s1", "1700000000000"), "2023-11-14T22:13:20Z"),
        (("backfill", "mall/s1", "-1h", "2999-01-01T00:00:00Z"), "future"),
        (("backfill", "mall/s1", "now", "-1h"), "before the second"),
        (("backfill", "mall/s1", "-1h", "now", "--name", "a.b"), "contains '.'"),
        (("backfill", "mall/s1"), "FROM and TO"),
        (("backfill", "mall/s1", "--cancel", "look"), "none is being read now"),
        (("pause", "mall/s2"), "did you mean mall/s1"),
        (("pause", "mall"), "PLATFORM/SOURCE"),
    ],
)
async def test_what_would_skip_or_make_no_sense_is_refused(
    cli: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    (await cli(*ADD, "--start", "-2d")).ok()
    before = await ledger_of(cli)
    told = await cli("sources", *arguments)
    assert told.code == 2, told.err
    assert said in told.err
    assert await ledger_of(cli) == before


async def test_a_removed_source_goes_only_when_somebody_said_yes(cli: CommandLine) -> None:
    (await cli(*ADD)).ok()
    unsure = await cli("sources", "remove", "mall/s1")
    assert (unsure.code, "--yes" in unsure.err) == (2, True)
    (await cli("sources", "remove", "mall/s1", "--yes")).ok()
    assert await cli.records.settings.entries() == []
    assert await cli.records.ledger(SHOP) is None
    assert (await cli("sources", "list", "--json")).ok().json() == []


async def test_a_kept_ledger_goes_on_and_is_never_begun_behind_its_start(cli: CommandLine) -> None:
    (await cli(*ADD, "--start", "-2d", "--set", "slice=30s")).ok()
    before = await ledger_of(cli)
    (await cli("sources", "remove", "mall/s1", "--keep", "--yes")).ok()
    assert (await cli("sources", "list", "--json")).json()[0]["state"] == "removed"
    earlier = await cli(*ADD, "--start", "-9d")
    assert (earlier.code, "rewind" in earlier.err) == (2, True)
    again = (await cli(*ADD, "--start", "-1d", "--json")).ok().json()
    assert (again["is_new"], again["is_continued"]) == (True, True)
    assert await ledger_of(cli) == before
    assert (await cli.records.settings_of(SHOP)).slice_ms == 30_000


async def test_a_ledger_in_place_of_a_lost_one_begins_where_a_person_says_in_a_later_epoch(cli: CommandLine) -> None:
    (await cli(*ADD, "--start", "-2d")).ok()
    await cli.records.tell(completed("t3-0-1000"))
    await cli.records.ledgers.delete(SHOP.key)
    again = await cli(*ADD, "--start", "-2d")
    assert (again.code, "sources rewind" in again.err) == (1, True)
    assert (await cli("sources", "list", "--json")).json()[0]["state"] == "no ledger"
    (await cli("sources", "rewind", "mall/s1", "2026-01-31T00:00:00Z")).ok()
    ledger = await ledger_of(cli)
    assert (ledger.epoch, ledger.start_ms, ledger.watermark_ms) == (4, 1_769_817_600_000, 1_769_817_600_000)


async def test_adding_goes_on_after_a_crash_between_its_writes(cli: CommandLine) -> None:
    ledger = first_ledger(1_769_817_600_000)
    await cli.records.settings.create("fetch.mall.s1", b'{"slice": "30s"}')
    await cli.records.create_ledger(SHOP, ledger)
    (await cli(*ADD, "--set", "slice=30s")).ok()
    assert await ledger_of(cli) == ledger
    assert (await record_of(cli)).adapter == "mall"


async def test_two_who_add_the_same_source_at_once_both_find_it_there(cli: CommandLine) -> None:
    account = {"base_url": "http://127.0.0.1:9", "shop": "s1"}
    wanted, told = Wanted(SHOP, "mall", account, start="-1d"), list[SourceAdded]()

    async def add_one() -> None:
        told.append(await add(cli.records, wanted))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(add_one)
    assert [each.is_new for each in told].count(True) == 1
    assert {each.ledger for each in told} == {await ledger_of(cli)}
    assert (await record_of(cli)).account == account


async def test_broken_records_are_shown_and_do_not_hide_the_others(cli: CommandLine) -> None:
    (await cli(*ADD)).ok()
    await cli.records.settings.put("source.mall.s2", b"{")
    await cli.records.session.bucket("LEDGERS").put("mall.s3", b"[]")
    listed: Answer = (await cli("sources", "list", "--json")).ok()
    assert [(one["source"], one["state"]) for one in listed.json()] == [
        ("mall/s1", "running"),
        ("mall/s2", "broken"),
        ("mall/s3", "broken"),
    ]
    assert (await cli("sources", "show", "mall/s3")).code == 1
    (await cli("slices")).ok()


async def test_a_source_is_shown_with_where_each_setting_comes_from(cli: CommandLine) -> None:
    await cli.records.settings.put("fetch.default", b'{"slice": "45s"}')
    (await cli(*ADD, "--set", "retries=2")).ok()
    shown = (await cli("sources", "show", "mall/s1", "--json")).ok().json()
    origins = {name: shown["settings"][name]["from"] for name in ("slice", "retries", "settle")}
    assert origins == {"slice": "default", "retries": "source", "settle": "built in"}
    assert shown["faults"] == []
    for_people = (await cli("sources", "show", "mall/s1")).ok().out
    assert "account shop: s1" in for_people
    assert "45s" in for_people


async def test_a_person_learns_why_a_source_is_not_read_while_no_node_lives(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.held.ASK_S", 0.5)  # for jobs of that name, which only a node knows
    (await cli(*ADD)).ok()
    [told] = (await cli("why", "mall/s1", "--json")).ok().json()
    assert (told["kind"], told["code"]) == ("source", "nobody")


async def test_a_person_learns_why_a_slice_is_not_read(cli: CommandLine) -> None:
    """No node runs here but records of nodes."""
    (await cli(*ADD, "--start", "-2d")).ok()
    now = now_ms()
    start = now - now % 1000 - 3_600_000
    piece = OpenSlice("t", 1, start, start + 60_000)
    later = Slice("t", 1, now, now + 60_000)

    nodes = cli.records.session.bucket("NODES")
    living: list[NodeRecord] = []

    async def ask(*arguments: str) -> Any:
        """Ask just after a heartbeat, which counts for seconds. A busy machine takes longer for all these questions."""
        for record in living:
            await nodes.put(record.node, msgspec.json.encode(record), ttl_s=600)
        [told] = (await cli(*arguments, "--json")).ok().json()
        return told

    async def why(slice_: Slice, **ledger: Any) -> tuple[str, str]:
        await set_ledger(cli, Ledger(start, start + 60_000, start, **{"open": (piece,), **ledger}))
        told = await ask("why", f"mall/s1/{slice_.slice_id}")
        return told["code"], told["reason"]

    assert (await why(piece))[0] == "nobody"
    living[:] = [NodeRecord(node="n7", run="x", roles=("fetcher",))]
    assert (await why(piece))[0] == "turn"
    (await cli("sources", "set", "mall/s1", "--pin", "eu")).ok()
    kept = await cli.records.settings.get("source.mall.s1")
    assert kept is not None
    record = msgspec.json.decode(kept.raw)
    await cli.records.settings.put("source.mall.s1", msgspec.json.encode({**record, "adapter": "gone"}))
    await set_ledger(cli, Ledger(start, start + 60_000, start + 60_000))
    listed = await ask("sources", "list")
    assert "its adapter gone cannot be used: " in listed["waits"]
    assert await why(piece) == ("adapter", listed["waits"])
    await cli.records.settings.put("source.mall.s1", msgspec.json.encode(record))
    nobody = "no live node with the label eu fetches; start one with `penstock up`"
    assert await why(piece) == ("nobody", nobody)
    listed = await ask("sources", "list")
    assert (listed["state"], listed["waits"]) == ("running", nobody)
    orders = cli.records.namespace.orders("mall", "s1")
    await ensure_consumer(cli.records.connection, sink_consumer(cli.records.namespace, "main"))
    await cli.records.settings.put("fetch.default", b'{"sink_backlog": 100}')
    await cli.records.session.publisher.publish_many([Outgoing(orders, b"{}", f"o{n}") for n in range(101)])
    (await cli("sources", "set", "mall/s1", "--unset", "pin")).ok()
    listed = await ask("sources", "list")
    assert listed["waits"] == "101 orders wait before sink_main, more than sink_backlog allows"
    await cli.records.settings.put("fetch.default", b'{"sink_backlog": 200}')
    listed = await ask("sources", "list")
    assert listed["waits"] == ""
    living[:] = [NodeRecord(node="n7", run="x", roles=("fetcher",), page_orders=2.5)]
    listed = await ask("sources", "list")
    assert listed["waits"] == "252 orders wait before sink_main, more than sink_backlog allows"
    await cli.records.connection.api(f"STREAM.PURGE.{cli.records.namespace.stream('ORDERS')}")
    listed = await ask("sources", "list")
    assert listed["waits"] == ""
    assert await why(piece, state="parked", reason="401") == ("parked", "its source is parked: 401")
    assert (await why(piece, state="paused", reason="stock"))[0] == "paused"
    assert (await why(piece, outage=Outage(now, reason="503")))[0] == "down"
    assert (await why(piece, hold_until_ms=now + 60_000))[0] == "throttled"
    assert (await why(later))[0] == "settle"
    taken = structs.replace(piece, fence=2, holder="n7", taken_ms=now)
    code, reason = await why(piece, open=(taken,))
    assert (code, "n7 reads it since" in reason) == ("held", True)
    tried = structs.replace(piece, attempt=2, not_before_ms=now + 60_000, reason="500")
    assert await why(piece, open=(tried,)) == ("retry", "attempt 1 failed: 500")
    hole = Hole("t", 1, start, start + 60_000, attempts=5, reason="500")
    assert (await why(piece, open=(), holes=(hole,)))[0] == "hole"
    assert (await why(piece, open=()))[0] == "over"
