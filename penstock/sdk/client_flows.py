"""Flows of the client.

for view in await client.flows.list(): ...
await client.flows.set("pay-prizes", rate=500)
"""

import builtins

from actors.flow.desk import FlowView
from actors.flow.rules.obstacles import RowWhy
from penstock.api.forms.flows import FlowsShown
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_forms import finite
from penstock.sdk.pages import all_lines

__all__ = ["FlowCalls"]


class FlowCalls:
    """The flows of one namespace. The methods raise NotAccepted (`code`: `bad`, `not_found`), Timeout, Unavailable, and
    UsageError for values that cannot be sent."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    async def list(self, *, after: str = "", limit: int | None = None) -> builtins.list[FlowView]:
        """Return all flows by name, each with its last round, or up to `limit` of those after `after`."""
        return await all_lines(self._service, "list", FlowsShown, lambda page: page.flows, after=after, limit=limit)

    async def show(self, flow: str) -> FlowView:
        """Return a flow with its latest rounds."""
        return await self._about("show", flow)

    async def why(self, flow: str, shard: str, key: str | int) -> RowWhy:
        """Return why a row is not executed. `shard`: as `split` named it. `key`: as the row was loaded with it."""
        return await self._service.ask("why", {"flow": flow, "shard": shard, "key": str(key)}, RowWhy)

    async def set(self, flow: str, **values: object) -> FlowView:
        """Change some settings: every, longest, lead, load_timeout (as `5s`), rate, most_in_flight, groups, slots
        (calls of `execute` at once under each key, 0: no limit), slot_key, when_full. `None` resets one to the value in
        the code."""
        return await self._service.ask("set", {"flow": flow, "set": finite(values)}, FlowView)

    async def pause(self, flow: str) -> FlowView:
        """Load and execute nothing more. Rows that run come to their end."""
        return await self._about("pause", flow)

    async def resume(self, flow: str) -> FlowView:
        """Load and execute again after a pause."""
        return await self._about("resume", flow)

    async def run(self, flow: str) -> FlowView:
        """Have a round now, beside the schedule."""
        return await self._about("run", flow)

    async def _about(self, verb: str, flow: str) -> FlowView:
        return await self._service.ask(verb, {"flow": flow}, FlowView)
