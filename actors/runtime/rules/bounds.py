"""Where work may run: its *bound*, as people write it. Pure.

Empty: anywhere. `east`: in that zone. `shard:7` or `shard:DE`: in the zone that owns that shard now.
"""

import re

from actors.runtime.rules.setting_values import BadSetting, read_text

SHARD = "shard:"
BOUND = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*|shard:[A-Za-z0-9_-]{1,64}", re.ASCII)
LONGEST_ZONE = 24


def read_bound(name: str, value: object) -> str:
    """Return a bound. Raises BadSetting."""
    text = read_text(name, value)
    if not text or (BOUND.fullmatch(text) and (shard_in(text) or len(text) <= LONGEST_ZONE)):
        return text
    raise BadSetting(name, value, "is neither a zone nor a shard", "write a zone, or shard:7 for the zone that owns it")


def shard_in(bound: str) -> str:
    """Return the shard to whose owner something is bound. Empty: to none."""
    return bound.removeprefix(SHARD) if bound.startswith(SHARD) else ""


def bound_text(bound: str, zone: str | None) -> str:
    """Return what a bound is, for a person. `zone`: the one that it means now, None if there is none."""
    shard = shard_in(bound)
    if not shard:
        return f"bound to zone {bound}"
    return f"bound to shard {shard}, which " + (f"zone {zone} owns" if zone else "no zone owns")


def check_own_queue(flow: str, bound: object) -> None:
    """Raise ValueError for a flow that is bound to a shard, where each zone has a server of its own."""
    if isinstance(bound, str) and shard_in(bound):
        raise ValueError(
            f"flow {flow}: zone={bound}: zones on servers of their own have a queue each, and rows that wait in one"
            " would run again when the shard is back; use each_zone=True in the code"
        )


def nobody_text(bound: str, zone: str | None) -> str:
    """Return that no node may work on something, and what to do."""
    if zone is None:
        return f"it is {bound_text(bound, zone)}; see `penstock routing show`"
    return f"it is {bound_text(bound, zone)}, which no node of it serves; start one with --zone {zone}"
