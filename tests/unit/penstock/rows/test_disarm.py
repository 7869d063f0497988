"""No text that a person uploaded runs as a formula when another person opens the result."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.rows.sheets.disarm import disarmed, rearmed


@pytest.mark.parametrize(
    "text",
    [
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        " =1",
        "\u00a0=1",
        "fine\n=1",
        "fine\r\n @x",
        "\uff1d1",
        "-",
    ],
)
def test_what_would_be_a_formula_becomes_text(text: str) -> None:
    assert disarmed(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "plain", "a=b", "-12", "+49", "-0.5", "1-2", "x\ny"])
def test_everything_else_stays(text: str) -> None:
    assert disarmed(text) == text


@given(st.text() | st.text("'=\n+1a ", max_size=6))
def test_what_was_disarmed_comes_back_as_it_was(text: str) -> None:
    assert rearmed(disarmed(text)) == text


@given(st.text())
def test_no_line_of_what_comes_out_starts_a_formula(text: str) -> None:
    out = disarmed(text)
    assert out in (text, f"'{text}")
    assert out.startswith("'") or not out.lstrip(" \u00a0").startswith(("=", "@")), out
