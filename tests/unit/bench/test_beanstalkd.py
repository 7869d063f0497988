"""The comparison with beanstalkd where there is none."""

import pytest

from bench import beanstalkd


async def test_without_the_binary_the_claim_is_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beanstalkd, "find_beanstalkd", lambda: None)
    result = await beanstalkd.run()
    assert result.ok
    assert "skipped: no beanstalkd" in result.as_row()
    assert result.theirs is None
