"""Calls an adapter. It is foreign code, and its mistakes must affect its own slices only."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from actors.runtime.logs import fields
from platforms.adapter import Adapter, Later, Outcome, Response
from platforms.errors import BrokenContract, PlatformError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def called(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call an adapter's function. Raises PlatformError as the adapter does, and BrokenContract for any other exception.
    It reports only the place of that one, since its text may hold what the platform sent."""
    try:
        return function(*args, **kwargs)
    except PlatformError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at {at.filename.rpartition('/')[2]}:{at.lineno}"
        log.error("adapter.failed", extra=fields(function=getattr(function, "__qualname__", ""), place=place))
        raise BrokenContract(f"the adapter failed: {place}") from error


def outcome_of(adapter: Adapter, response: Response, *, is_last: bool) -> Outcome | None:
    """Return what the answer means, `None` if its rows may be read. `is_last`: it is the last try. Errors that concern
    some of the rows did not pass until now, so the page is read without these rows."""
    outcome = called(adapter.outcome, response)
    return None if is_last and isinstance(outcome, Later) and outcome.is_partial else outcome
