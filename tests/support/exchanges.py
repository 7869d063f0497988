"""Writes `tests/golden/platforms/<platform>_….json`: what each adapter asks of the mall's dialect, and reads.

    python -m tests.support.exchanges [platform …]

Run it after a wanted change of an adapter file, and look at what `git diff` shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from platforms.adapter import Account, Request, Response
from platforms.bounds import Window
from platforms.mall.dialects.registry import DIALECTS
from platforms.registry import adapter_named, adapter_names
from tests.support.dialects import START_MS, StillShop, account_of, response_of

FOLDER = Path(__file__).parents[1] / "golden" / "platforms"
WINDOW = Window(START_MS - 7_200_000, START_MS - 6_000_000)


def request_facts(request: Request) -> Any:
    """Return a request as an exchange holds it."""
    return msgspec.json.decode(msgspec.json.encode(msgspec.structs.asdict(request) | {"body": request.body.decode()}))


def read_facts(platform: str, response: Response) -> dict[str, Any]:
    """Return what the adapter makes of an answer, as an exchange holds it."""
    adapter = adapter_named(platform)
    outcome = adapter.outcome(response)
    if outcome is not None:
        return {"outcome": msgspec.to_builtins(outcome)}
    page = adapter.page(response)
    read = {
        "rows": [[row.key, row.version, row.modified_ms, row.body.decode()] for row in page.rows],
        "next": page.next,
        "total": page.total,
        "server_time_ms": page.server_time_ms,
        "bad": [[row.key, row.reason] for row in page.bad],
    }
    return {"outcome": None, "read": read}


def write(platform: str) -> None:
    """Write the platform's exchanges: a page, a refused login, and the answer to a caller that is too fast."""
    shop = StillShop(platform, orders=12, change_share=0.5)
    account = account_of(platform)
    wrong = {name: "old" for name in account.values if "token" in name or name in ("session", "consumer_secret")}
    made = adapter_named(platform).request(WINDOW, None, account, shop.now_ms)
    expired = Account("s1", {**account.values, **wrong})
    login = adapter_named(platform).request(WINDOW, None, expired, shop.now_ms)
    answers = {
        "page": (account, made, shop.answer(made)),
        "login": (expired, login, shop.answer(login)),
        "throttled": (account, made, response_of(DIALECTS[platform].spoil(-1))),
    }
    for kind, (used, asked, response) in answers.items():
        exchange = {
            "adapter": platform,
            "account": dict(used.values),
            "window": [WINDOW.start_ms, WINDOW.end_ms],
            "page": None,
            "now_ms": shop.now_ms,
            "request": request_facts(asked),
            "response": {
                "status": response.status,
                "headers": dict(response.headers),
                "body": response.body.decode(),
            },
            **read_facts(platform, response),
        }
        text = msgspec.json.format(msgspec.json.encode(exchange), indent=1)
        (FOLDER / f"{platform}_{kind}.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(set(DIALECTS) & set(adapter_names())):
        write(name)
