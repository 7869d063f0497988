"""`python -m platforms.mall`: run a mall until a signal comes. The first line on stdout is its state as JSON."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any, get_args

import anyio

from platforms.mall.config import MallConfig, Paging, Totals
from platforms.mall.dialects.registry import DIALECTS, mall_as
from platforms.mall.faults import PRESETS
from platforms.mall.server import open_mall

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """Return '250ms', '20s', '2h' as milliseconds. A minus in front is kept. 0 needs no unit."""
    found = re.fullmatch(r"(-?\d+)(ms|s|m|h|d)", text)
    if found is None and text != "0":
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 20s or 2h")
    return int(found[1]) * _UNITS[found[2]] if found else 0


def parser() -> argparse.ArgumentParser:
    """Return the command line. Names and defaults are those of `MallConfig`."""
    usual = MallConfig()
    made = argparse.ArgumentParser(
        prog="python -m platforms.mall", description="A simulated sales platform over real HTTP."
    )
    add = made.add_argument
    add("--host", default=usual.host)
    add("--port", type=int, default=usual.port, help="0 picks a free one")
    add("--shops", type=int, default=usual.shops)
    add("--orders", type=int, default=usual.orders, help="of all shops together")
    add("--seed", type=int, default=usual.seed)
    add("--start-ms", type=int, default=None, help="when the live part begins, by the mall's clock; now unless given")
    add("--platform", choices=["", *DIALECTS], default="", help="speak and behave as this platform does")
    add("--paging", choices=get_args(Paging), default=usual.paging)
    add("--tokens", choices=["keyset", "offset"], default=usual.tokens, help="offset drifts while orders leave")
    add("--past-end", choices=["empty", "last"], default=usual.past_end)
    add("--deepest", type=int, default=usual.deepest, help="the last row that pages reach, 0 for no limit")
    add("--ties", choices=["key", "shuffled"], default=usual.ties, help="shuffled sorts equal times anew each time")
    add("--page-size", type=int, default=usual.page_size)
    add("--totals", choices=get_args(Totals), default=usual.totals)
    add(
        "--listing", choices=["orders", "changes"], default=usual.listing, help="changes lists an order once per change"
    )
    add("--renamed", dest="is_renamed", action="store_true", help="the later half calls the key by another name")
    add("--tells-limits", action="store_true", help="headers tell what is left")
    add("--points", type=int, default=usual.points, help="requests take points of so many, 0 for none")
    add("--points-per-s", type=float, default=usual.points_per_s, help="points that come back each second")
    add("--lower", choices=["includes", "excludes"], default=usual.lower)
    add("--upper", choices=["includes", "excludes"], default=usual.upper)
    add("--grain", dest="grain_ms", type=duration_ms, default=usual.grain_ms, help="1s compares without milliseconds")
    add("--times", choices=["unix_ms", "unix_s", "iso", "wall"], default=usual.times)
    add("--zone", default=usual.zone)
    add(
        "--clock-offset",
        dest="clock_offset_ms",
        type=duration_ms,
        default=0,
        help="mall's clock minus ours, such as -10m",
    )
    add("--needs-token", action="store_true")
    add("--token-requests", type=int, default=usual.token_requests, help="requests for which a token is good")
    add("--history", dest="history_ms", type=duration_ms, default=usual.history_ms)
    add("--live", dest="live_ms", type=duration_ms, default=usual.live_ms)
    add("--live-share", type=float, default=usual.live_share)
    add("--change-share", type=float, default=usual.change_share)
    add("--late-share", type=float, default=usual.late_share)
    add("--late", dest="late_ms", type=duration_ms, default=usual.late_ms)
    add("--very-late-share", type=float, default=usual.very_late_share)
    add("--very-late", dest="very_late_ms", type=duration_ms, default=usual.very_late_ms)
    add("--tie-share", type=float, default=usual.tie_share)
    add("--crowd", type=int, default=usual.crowd, help="orders that share one second")
    add("--crowds", type=int, default=usual.crowds)
    add("--frozen-share", type=float, default=usual.frozen_share, help="orders whose time does not move with a change")
    add("--faults", choices=sorted(PRESETS), default="none")
    add("--until-stdin-closes", action="store_true", help="end with the process that started this one")
    return made


async def serve(config: MallConfig, start_ms: int | None, *, until_stdin_closes: bool) -> None:
    """Run until SIGINT, SIGTERM, or with `until_stdin_closes` the end of stdin."""
    async with open_mall(config, start_ms=start_ms) as mall, anyio.create_task_group() as tasks:
        sys.stdout.write(json.dumps(mall.state()) + "\n")
        sys.stdout.flush()
        if until_stdin_closes:
            tasks.start_soon(_leave_at_end_of_stdin, tasks.cancel_scope)
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                tasks.cancel_scope.cancel()


async def _leave_at_end_of_stdin(scope: anyio.CancelScope) -> None:
    stdin = sys.stdin.fileno()
    while True:
        await anyio.wait_readable(stdin)
        if not os.read(stdin, 1 << 16):
            scope.cancel()
            return


def config_of(values: Mapping[str, Any]) -> MallConfig:
    """Return the config of a command line: the platform's own manners, and what differs from the defaults."""
    given = {name: value for name, value in values.items() if name in MallConfig.__struct_fields__}
    config = MallConfig(**{**given, "faults": PRESETS[values["faults"]]})
    if not config.platform:
        return config
    usual = MallConfig()
    changed = {name: getattr(config, name) for name in given if getattr(config, name) != getattr(usual, name)}
    return mall_as(**{"name": changed.pop("platform"), **changed})


def main() -> None:
    values = vars(parser().parse_args())
    start_ms, until_stdin_closes, config = values["start_ms"], values["until_stdin_closes"], config_of(values)
    anyio.run(
        lambda: serve(config, start_ms, until_stdin_closes=until_stdin_closes),
        backend_options={"use_uvloop": sys.platform != "win32"},
    )


if __name__ == "__main__":
    main()
