"""Plain values are taken as Typer would take them; whatever is not plain is Typer's."""

from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from penstock.cli.terminal.parameters import NotPlain, plain

Colour = Literal["red", "blue"]


def typers(kind: Any, text: str) -> object:
    """Return what Typer makes of a text. Raises what Typer raises."""
    app = typer.Typer(pretty_exceptions_enable=False)
    found: list[object] = []

    def take(value: Any = typer.Option()) -> None:  # noqa: B008 # read by Typer
        found.append(value)

    take.__annotations__["value"] = kind
    app.command()(take)
    get_command(app).main([f"--value={text}"], standalone_mode=False)
    return found[0]


texts = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False).map(str),
    st.text(alphabet="0123456789.-+_eE ", max_size=8),
    st.sampled_from(["red", "blue", "Red", "", "a b"]),
)


@given(kind=st.sampled_from([int, float, str, Path, Colour]), text=texts)
def test_a_plain_value_is_what_typer_makes_of_it(kind: Any, text: str) -> None:
    try:
        value = plain(text, kind)
    except NotPlain:
        return
    assert value == typers(kind, text)
    assert type(value) is type(typers(kind, text))


@pytest.mark.parametrize(
    ("value", "kind"), [("5", int), ("-5", int), ("2.5", float), ("3", float), ("x", str), ("f", Path), ("red", Colour)]
)
def test_what_people_write_is_plain(value: str, kind: Any) -> None:
    assert plain(value, kind) is not None


@pytest.mark.parametrize(("value", "low", "high"), [("0", 1, None), ("11", None, 10), ("x", None, None)])
def test_what_typer_would_refuse_is_left_to_it(value: str, low: float | None, high: float | None) -> None:
    with pytest.raises(NotPlain):
        plain(value, int, low, high)
