"""The `traceparent` of the W3C: which texts are one, and where it is found."""

import pytest

from actors.runtime.rules.traceparents import is_traceparent, traceparent_of

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD.upper(),
        f"{GOOD} ",
        f"{GOOD}\n",
        f"ff{GOOD[2:]}",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        GOOD[:-3],
        7,
    ],
)
def test_another_text_is_taken_for_none(text: object) -> None:
    assert not is_traceparent(text)
    assert traceparent_of({"traceparent": str(text)}) == ""


def test_it_is_found_whichever_way_programs_write_its_name() -> None:
    assert is_traceparent(GOOD)
    assert traceparent_of({"traceparent": GOOD}) == traceparent_of({"Traceparent": GOOD}) == GOOD
    assert traceparent_of({}) == ""
