"""Rates of the client.

view = await client.rates.show("pay-prizes")
await client.rates.set("pay-prizes", 500)
"""

from msgspec.structs import replace

from actors.flow.rates_desk import SECONDS, RateChanged, RatesView
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_forms import finite
from penstock.sdk.pages import all_pages

__all__ = ["RateCalls"]


class RateCalls:
    """The rates of one namespace. `kind`: topic, flow, task, platform or source. Empty: whichever has the name.
    The methods raise NotAccepted (`code`: `bad`, `not_found`), Timeout, Unavailable, and UsageError for values that
    cannot be sent."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    async def list(self, seconds: int = SECONDS, *, after: str = "", limit: int | None = None) -> RatesView:
        """Return every rate that there is, by kind and name, with what was begun in the last `seconds` full seconds, up
        to 120. Or up to `limit` of those after `after`, a KIND/NAME: then `next` says where the list goes on. Of many
        rates, the last ones may be of a second later than the first."""
        first, *others = await all_pages(
            self._service, "list", RatesView, lambda page: page.rates, after=after, limit=limit, seconds=seconds
        )
        if not others:
            return first
        return replace(first, rates=[rate for page in (first, *others) for rate in page.rates], next=others[-1].next)

    async def show(self, name: str, *, kind: str = "", seconds: int = SECONDS) -> RatesView:
        """Return one rate, with what was begun in the last `seconds` full seconds, up to 120."""
        ask = {"kind": kind, "name": name, "seconds": seconds}
        return await self._service.ask("show", ask, RatesView)

    async def set(self, name: str, rate: float | None, *, kind: str = "") -> RateChanged:
        """Change a rate, per second over the whole cluster. 0: no limit. `None`: as the code, or the default of topics,
        has it."""
        ask = {"kind": kind, "name": name, **finite({"rate": rate})}
        return await self._service.ask("set", ask, RateChanged)
