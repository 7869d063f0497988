"""Asks a platform once before its source is added: a file that cannot work is found out by a person, not at night."""

from collections.abc import Mapping

import anyio

from actors.fetch.grants import Ask, Grants
from actors.fetch.sources import SourceKey
from actors.runtime.secrets import BadReference, resolve_values
from actors.runtime.transport import open_transport
from penstock.admin.adapter_trial import first_problem
from penstock.errors import UsageError
from platforms.adapter import Account, Adapter
from platforms.bounds import Window

__all__ = ["try_first_request"]

LONGEST_S = 15.0
WINDOW_MS = 3_600_000


async def try_first_request(
    source: SourceKey, adapter: Adapter, account: Mapping[str, str], *, grants: Grants, now_ms: int
) -> list[str]:
    """Ask for the orders of an hour. Return notes about what may pass, or could not be tried here. What a login brings
    is kept for the nodes: many refresh keys work once. Raises UsageError for a request that the platform refuses, and
    for an answer that cannot be read."""
    try:
        values = resolve_values(account)
    except BadReference as error:
        named = str(error).partition(": the variable")[0]
        return [f"the platform was not asked, since a reference leads nowhere here: {named}; the nodes need it"]
    end_ms = now_ms - adapter.declaration.settle_ms
    window = Window(end_ms - min(WINDOW_MS, adapter.declaration.window.longest_ms), end_ms)
    known = Account("first", values)

    async def renewing(refused: Account, ask: Ask) -> Mapping[str, str]:
        def is_other(kept: Mapping[str, str]) -> bool:
            return {**values, **kept} != dict(refused.values)

        return await grants.renewed(source, known, is_other, ask, timeout_s=adapter.declaration.timeout_s)

    problem = None
    async with open_transport(connections=2) as transport:
        with anyio.move_on_after(LONGEST_S) as scope:
            problem = await first_problem(
                adapter, known, window, stored=account, transport=transport, now_ms=now_ms, renewing=renewing
            )
    if scope.cancelled_caught:
        return [f"the platform did not answer within {LONGEST_S:g} s"]
    if problem is None:
        return []
    if problem.may_pass:
        return [f"asked the platform once: {problem.text}"]
    raise UsageError(
        f"the platform was asked once, and it cannot work so: {problem.text}. `penstock adapter try` shows more; "
        "--untried adds the source all the same"
    )
