"""Every adapter, with the kind of mall that it can read."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from platforms.adapter import Adapter
from platforms.declared import declare
from platforms.mall.config import MallConfig
from platforms.registry import adapter_named

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
BERLIN_BACK_MS = 1_792_890_000_000  # 2026-10-25 01:00 UTC: the hour from 2 to 3 comes again
BERLIN_ON_MS = 1_774_746_000_000  # 2026-03-29 01:00 UTC: the hour from 2 to 3 is left out
_MALL = MallConfig(orders=900, history_ms=HOUR_MS, live_ms=60_000, page_size=50, change_share=0.5)


class Player(NamedTuple):
    """An adapter and its platform; `start_ms` is when the live part begins."""

    name: str
    adapter: Adapter
    mall: MallConfig
    start_ms: int = START_MS


def _mall(**changes: Any) -> MallConfig:
    return msgspec.structs.replace(_MALL, **changes)


def _declared(style: str, window: dict[str, Any], modified: dict[str, Any] | None = None, **pages: Any) -> Adapter:
    """Return the mall's adapter as a table, in another dialect."""
    params = {"shop": "{account.shop}", "from": "{window.start}", "to": "{window.end}", "limit": "{page.size}"}
    token = {"page_token": "{page.token}"} if style == "token" else {}
    if numbered := pages.pop("numbered", ""):
        token["page" if numbered == "number" else "offset"] = f"{{page.{numbered}}}"
    following = {"token": {"next": "next_page_token"}, "link": {"next": "next"}, "one": {}}[style]
    bounds = {"lower": window.get("lower"), "upper": window.get("upper")}
    for bound, name in (("lower", "from"), ("upper", "to")):
        if bounds[bound] == "absent":
            del params[name]
    return declare(
        {
            "name": f"mall_{style}",
            "settle": "3s",
            "timeout": "5s",
            "request": {"path": "/orders", "params": params | token},
            "window": window,
            "pages": {"style": style, "size": 50, "total": "total", **following, **pages},
            "record": {
                "rows": "orders",
                "key": "id",
                "version": {"kind": "number", "path": "version"},
                "modified": modified or {"path": "modified_ms", "format": "unix_ms"},
            },
            "errors": [{"status": 200, "body": "error.code", "equals": "busy", "outcome": "later"}],
        }
    )


def _wall(zone: str) -> dict[str, Any]:
    return {"format": "wall", "zone": zone, "step": "1s"}


def _said(written: str, zone: str = "UTC") -> dict[str, Any]:
    return {"path": "modified_at", "format": written, "zone": zone}


_SECONDS = {"format": "unix_s", "step": "1s", "clock": "1s"}

PLAYERS = [
    Player("mall", adapter_named("mall"), _mall()),
    Player("mall_token", adapter_named("mall_token"), _mall(paging="token")),
    Player("mall_token, drifting", adapter_named("mall_token"), _mall(paging="token", tokens="offset")),
    Player("mall_link", adapter_named("mall_link"), _mall(paging="link")),
    Player("one with a way on", _declared("one", {}), _mall(paging="one", page_size=20)),
    Player(
        "a crowd on one second, pages by number",
        _declared("one", _SECONDS, _said("unix_s"), numbered="number", size=20),
        _mall(paging="number", times="unix_s", grain_ms=1000, page_size=20, crowd=60, crowds=3, past_end="last"),
    ),
    Player(
        "a crowd that nothing sorts, pages by offset below the declared size",
        _declared("one", _SECONDS, _said("unix_s"), numbered="offset"),
        _mall(paging="offset", times="unix_s", grain_ms=1000, page_size=20, crowd=60, crowds=3, ties="shuffled"),
    ),
    Player(
        "no upper bound, pages by number",
        _declared("one", {"upper": "absent"}, numbered="number"),
        _mall(paging="number", orders=300),
    ),
    Player(
        "both included, whole seconds",
        _declared("token", {**_SECONDS, "lower": "includes", "upper": "includes"}, _said("unix_s")),
        _mall(paging="token", times="unix_s", grain_ms=1000, lower="includes", upper="includes"),
    ),
    Player(
        "both excluded, whole seconds",
        _declared("one", {**_SECONDS, "lower": "excludes", "upper": "excludes"}, _said("unix_s")),
        _mall(times="unix_s", grain_ms=1000, lower="excludes", upper="excludes"),
    ),
    Player(
        "seconds asked for, milliseconds compared",
        _declared(
            "link", {"format": "iso_z", "step": "1s", "lower": "excludes", "upper": "includes"}, _said("iso_offset")
        ),
        _mall(paging="link", times="iso", lower="excludes", upper="includes"),
    ),
    Player(
        "no upper bound",
        _declared("token", {"upper": "absent"}),
        _mall(paging="token", orders=300),
    ),
    Player(
        "wall time of Kathmandu",
        _declared("token", _wall("Asia/Kathmandu"), _said("wall", "Asia/Kathmandu")),
        _mall(paging="token", times="wall", zone="Asia/Kathmandu"),
    ),
    Player(
        "wall time where an hour comes again",
        _declared("token", _wall("Europe/Berlin"), _said("wall", "Europe/Berlin")),
        _mall(paging="token", times="wall", zone="Europe/Berlin", history_ms=3 * HOUR_MS),
        BERLIN_BACK_MS + HOUR_MS,
    ),
    Player(
        "wall time where an hour is left out",
        _declared("token", _wall("Europe/Berlin"), _said("wall", "Europe/Berlin")),
        _mall(paging="token", times="wall", zone="Europe/Berlin", history_ms=3 * HOUR_MS),
        BERLIN_ON_MS + HOUR_MS,
    ),
]
