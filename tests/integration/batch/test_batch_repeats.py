"""A try of a call that comes late, when another try of the call has been done and others have called since."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.batch.views import View
from penstock.errors import NotAccepted
from penstock.sdk.client_batches import Batches
from streams.link.connection import Connection

OVER_S = 60


async def tried(link: Connection, endpoint: str, **ask: Any) -> dict[str, Any]:
    """Ask the service once, and return its answer, or its error."""
    answer = await link.request(link.namespace.api("batch", endpoint), msgspec.json.encode(ask), timeout_s=20)
    told: dict[str, Any] = msgspec.json.decode(answer.payload)
    return told


async def made(batches: Batches, name: str) -> dict[str, Any]:
    """Make an instance that is over, and return what a change of it names."""
    await batches.submit("count", {"n": 1}, id=name)
    view = await batches.wait(name, timeout_s=OVER_S)
    return {"id": name, "created_ms": view.created_ms}


async def test_a_late_try_of_a_pause_pauses_nothing_that_was_resumed(batches: Batches, link: Connection) -> None:
    await batches.submit("count", {"n": 1}, id="late-pause", delay="1h")
    pause = {"id": "late-pause", "nonce": "first"}
    assert (await tried(link, "pause", **pause))["state"] == "paused"
    assert (await batches.resume("late-pause")).state == "pending"
    assert (await tried(link, "pause", **pause))["state"] == "pending"
    assert (await tried(link, "pause", id="late-pause", nonce="second"))["state"] == "paused"


async def test_calls_of_different_verbs_may_have_one_nonce(batches: Batches, link: Connection) -> None:
    await batches.submit("count", {"n": 1}, id="one-nonce", delay="1h")
    one = {"id": "one-nonce", "nonce": "n"}
    told = [(await tried(link, verb, **one))["state"] for verb in ("pause", "resume", "pause", "cancel", "retry")]
    assert told == ["paused", "pending", "pending", "cancelled", "pending"]


async def test_a_late_try_of_a_cancel_that_met_the_end_cancels_no_later_pass(
    batches: Batches, link: Connection
) -> None:
    meant = await made(batches, "late-cancel")
    assert (await tried(link, "cancel", **meant, nonce="c"))["state"] == "done"
    await batches.retry("late-cancel", [0])
    await tried(link, "cancel", **meant, nonce="c")
    assert (await batches.wait("late-cancel", timeout_s=OVER_S)).state == "done"


async def test_a_late_try_of_a_retry_runs_nothing_once_more(batches: Batches, link: Connection) -> None:
    meant = await made(batches, "late-retry")
    again = {**meant, "items": [0], "nonce": "r"}
    assert (await tried(link, "retry", **again))["passes"] == 2
    assert (await batches.wait("late-retry", timeout_s=OVER_S)).state == "done"
    assert (await tried(link, "retry", **again))["passes"] == 2
    assert (await tried(link, "retry", **meant, items=[0, 0], nonce="r"))["passes"] == 3, "it asks for others"


@pytest.mark.parametrize("endpoint", ["delete", "cancel", "pause", "retry"])
async def test_a_late_try_changes_no_later_instance_of_the_id(
    batches: Batches, link: Connection, endpoint: str
) -> None:
    name = f"later-{endpoint}"
    meant = await made(batches, name)
    await batches.delete(name)
    later = await made(batches, name)
    refused = await tried(link, endpoint, **meant, nonce="n", **({"items": [0]} if endpoint == "retry" else {}))
    assert refused["error"]["code"] == "not_found"
    assert "its id is another instance's now" in refused["error"]["reason"]
    view = await batches.show(name)
    assert (view.state, view.passes, view.created_ms) == ("done", 1, later["created_ms"])


@pytest.mark.parametrize("endpoint", ["delete", "cancel", "pause"])
async def test_a_late_try_that_names_the_id_alone_changes_no_later_instance_either(
    batches: Batches, link: Connection, endpoint: str
) -> None:
    """As over HTTP. The instance that it was for is deleted, and its id is another's."""
    call = {"id": f"alone-{endpoint}", "nonce": "~n/1 ü"}
    for _ in range(2):
        await batches.submit("count", {"n": 1}, id=call["id"], delay="1h")
        if endpoint == "delete":
            await batches.cancel(call["id"])
        await tried(link, endpoint, **call)
        if endpoint != "delete":
            await batches.cancel(call["id"])
            await batches.delete(call["id"])
        later = await batches.submit("count", {"n": 1}, id=call["id"], delay="1h")
        await tried(link, endpoint, **call)
        view = await batches.show(call["id"])
        assert (view.state, view.created_ms) == ("pending", later.created_ms)
        await batches.cancel(call["id"])
        await tried(link, endpoint, **call)
        assert (await batches.show(call["id"])).created_ms == later.created_ms
        await batches.delete(call["id"])
        call["nonce"] += "2"


async def test_a_late_try_of_a_submission_makes_no_second_instance(batches: Batches, link: Connection) -> None:
    submission = {"task": "count", "input": {"n": 1}, "id": "late-submit", "nonce": "~one"}
    first = await tried(link, "submit", **submission)
    assert (await tried(link, "submit", **submission))["created_ms"] == first["created_ms"]
    await batches.wait("late-submit", timeout_s=OVER_S)
    await batches.delete("late-submit")
    refused = await tried(link, "submit", **submission)
    assert refused["error"]["code"] == "state"
    assert "made by an earlier try of this call, and deleted since" in refused["error"]["reason"]
    assert (await tried(link, "submit", **{**submission, "nonce": "~two"}))["created_ms"] > first["created_ms"]


async def test_a_late_try_of_a_submission_finds_it_though_what_it_was_to_follow_is_gone(
    batches: Batches, link: Connection
) -> None:
    await made(batches, "late-before")
    submission = {"task": "count", "input": {"n": 1}, "id": "late-after", "after": "late-before", "nonce": "n"}
    first = await tried(link, "submit", **submission)
    await batches.wait("late-after", timeout_s=OVER_S)
    await batches.delete("late-before")
    assert (await tried(link, "submit", **submission)).get("created_ms") == first["created_ms"]
    other = await tried(link, "submit", **{**submission, "id": "late-other"})
    assert (other["error"]["code"], other["error"]["field"]) == ("not_found", "after")


async def test_a_refused_try_of_a_submission_leaves_the_file_of_an_earlier_one(
    batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try is done and its answer is lost. A second one is refused, whatever for."""
    sheet = tmp_path / "products.csv"
    sheet.write_text("sku,price\nA1,1\n", encoding="utf-8")
    view, is_lost = Batches._view, True

    async def lost(own: Batches, endpoint: str, ask: Mapping[str, object]) -> View:
        nonlocal is_lost
        told = await view(own, endpoint, ask)
        if endpoint == "submit" and is_lost:
            is_lost = False
            refused = NotAccepted("no room", code="full")
            refused.is_repeated = True
            raise refused
        return told

    monkeypatch.setattr(Batches, "_view", lost)
    with pytest.raises(NotAccepted):
        await batches.submit("register", file=sheet, id="late-file", delay="1h")
    await batches.submit("register", file=sheet, id="late-file", delay="1h")
    await batches.start("late-file")
    ended = await batches.wait("late-file", timeout_s=OVER_S)
    assert (ended.state, ended.counts.succeeded, ended.reason) == ("done", 1, "")
