"""Whether the gateway answers, and whether it is of use: for load balancers and those who watch, without a token."""

from typing import Literal

from msgspec import Struct

from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall
from penstock.api.http.problems import refused


class Health(Struct, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"


async def health(_shared: GatewayState, _call: HttpCall) -> HttpAnswer:
    """The process lives and its loop turns."""
    return HttpAnswer(Health())


async def ready(shared: GatewayState, _call: HttpCall) -> HttpAnswer:
    """The server is there and takes what is added, and the node is not about to stop."""
    if shared.is_stopping:
        raise refused(503, "unavailable", "the node is stopping", retry_after_s=1)
    if not shared.is_connected():
        raise refused(503, "unavailable", "the server cannot be reached", retry_after_s=1)
    if trouble := shared.trouble():
        raise refused(503, "unavailable", trouble, hint="see `penstock doctor`", retry_after_s=10)
    return HttpAnswer(Health())
