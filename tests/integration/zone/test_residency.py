"""Records whose region belongs to another zone are refused, with a line for the audit, also when the codes change."""

from __future__ import annotations

import anyio
import pytest
from anyio import fail_after

import penstock
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_flows import FlowCalls
from tests.integration.zone.test_bound import two_zones
from tests.support.zone_land import WITHIN_S, Land

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

REGIONS = {"function": "region", "zones": {"a": "DE", "b": "FR"}, "drain": "60s"}


async def test_a_record_of_another_region_is_refused_and_the_codes_change_at_run_time(land: Land) -> None:
    async with two_zones(land) as (ground, first, _):
        jobs, flows = ground.jobs, FlowCalls(ServiceClient(land.connection, "flow", 30.0))
        await land.zones.apply(map=REGIONS)
        await jobs.change_topic("bound-errands", zone="a", region_key="country")
        await jobs.add("bound-errands", {"country": "DE"}, id="1")
        with pytest.raises(penstock.NotAccepted, match="region 'FR' belongs to zone b, not to zone a") as refused:
            await jobs.add("bound-errands", {"country": "FR"}, id="2")
        assert refused.value.field == "body"
        with pytest.raises(penstock.NotAccepted, match="is neither text nor a whole number"):
            await jobs.add("bound-errands", {}, id="3")
        await ground.all_worked("job", 1)

        await ground.batches.limit("bound-numbers", zone="a", region_key="country")
        batch = await ground.batches.submit("bound-numbers", [100, 3, 0, "DE", "FR", "DE"])
        ended = await ground.batches.wait(batch.instance_id, timeout_s=WITHIN_S)
        assert (ended.counts.succeeded, ended.counts.failed) == (2, 1)
        await first.logged("zone.record_refused", of="task bound-numbers", zone="a", epoch=1)

        await flows.set("bound-gifts", zone="a", region_key="country")
        land.add(22)  # of these 2 and 22 are of FR, and 12 is of DE
        await ground.all_worked("gift", 1)
        await first.logged("zone.record_refused", of="flow bound-gifts", zone="a")
        assert set(ground.worked("gift")) == {"12"}

        # the policy changes while a job waits: DE leaves the zone, and FR comes
        await jobs.change_topic("bound-errands", is_paused=True)
        await jobs.add("bound-errands", {"country": "DE"}, id="4")
        await land.zones.apply(moves={"DE": "b", "FR": "a"})
        land.add(20)  # 32 is of DE, and 42 of FR
        await first.logged("zone.record_refused", of="flow bound-gifts", epoch=2)
        await jobs.change_topic("bound-errands", is_paused=False)
        await first.logged("zone.record_refused", of="topic bound-errands", epoch=2)
        await jobs.add("bound-errands", {"country": "FR"}, id="5")
        assert set(await ground.all_worked("job", 2)) == {"1", "5"}
        assert set(await ground.all_worked("gift", 4)) == {"12", "2", "22", "42"}
        with fail_after(WITHIN_S):
            while (await jobs.why("4"))[0].state != "done":  # noqa: ASYNC110 # the server is asked
                await anyio.sleep(0.05)
