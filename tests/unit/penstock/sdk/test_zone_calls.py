"""Calls about zones: what cannot be sent is refused before anything is."""

from typing import Any, cast

import pytest

from penstock.errors import UsageError
from penstock.sdk.client_zones import ZoneCalls


async def test_a_wait_without_a_unit_is_a_wrong_argument_like_any_other() -> None:
    calls = ZoneCalls(cast(Any, None))
    with pytest.raises(UsageError, match="wait: 'soon' is not a duration"):
        await calls.shards("a", wait="soon")
