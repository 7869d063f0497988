"""Sources of the client.

found = await client.sources.why("mall", "s1")
"""

from actors.fetch.overview import SourceWhy
from actors.fetch.slice_why import SliceWhy
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_forms import decode, encode

__all__ = ["SourceCalls"]


class SourceCalls:
    """The sources of one namespace. The methods raise NotAccepted (`code`: `bad`, `not_found`), Timeout,
    Unavailable."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    async def why(self, platform: str, source: str) -> SourceWhy:
        """Return why a source is not read."""
        ask = encode({"platform": platform, "source": source})
        return decode((await self._service.request("why", ask)).payload, SourceWhy)

    async def why_slice(self, platform: str, source: str, slice_id: str) -> SliceWhy:
        """Return why a slice of a source is not read. `slice_id`: as in its ledger, such as `t1-60000-90000`."""
        ask = encode({"platform": platform, "source": source, "slice": slice_id})
        return decode((await self._service.request("why", ask)).payload, SliceWhy)
