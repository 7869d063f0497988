"""Tables on a terminal: other columns are narrowed before any id is broken; `--wide` and a pipe have no limit."""

import json
from collections.abc import Sequence
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.terminal.output import IDS, Output

SOURCE = "a-platform-with-a-long-name/a-shop-whose-name-is-longer"
WHY = "the platform said no, and it said so at some length: " * 4


class Terminal(StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(columns: Sequence[str], rows: Sequence[Sequence[object]], *, file: StringIO, is_wide: bool = False) -> str:
    Output(is_json=False, is_wide=is_wide, file=file).table(columns, rows)
    return file.getvalue()


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def test_on_80_columns_a_long_id_stays_whole_and_the_text_beside_it_is_folded() -> None:
    shown = printed(["source", "state", "why"], [[SOURCE, "parked", WHY]], file=Terminal())
    assert SOURCE in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_where_the_ids_alone_take_the_room_each_cell_has_a_line() -> None:
    rows = [["x" * 40, "y" * 60, "because"], ["t", "i", "why not"]]
    assert printed(["topic", "id", "left\nout"], rows, file=Terminal()).split("\n\n") == [
        f"topic     {'x' * 40}\nid        {'y' * 60}\nleft out  because",
        "topic     t\nid        i\nleft out  why not\n",
    ]


@pytest.mark.parametrize(("file", "is_wide"), [(Terminal(), True), (StringIO(), False)])
def test_wide_and_in_a_pipe_nothing_is_folded(file: StringIO, is_wide: bool) -> None:
    shown = printed(
        ["source", "state", "why"], [[SOURCE, "parked", WHY], ["a/b", "on", "two\nlines"]], file=file, is_wide=is_wide
    )
    assert f"{SOURCE}   parked   {WHY}" in shown
    assert max(map(len, shown.splitlines())) <= len(SOURCE) + len("parked") + len(WHY) + 10


def test_what_says_nothing_is_left_out_first_and_then_what_is_spare() -> None:
    columns = ["source", "adapter", "state", "watermark", "lag", "open", "holes", "backfills", "node", ""]
    row = ["mall/s1", "mall", "parked", "2026-11-25T21:38:38Z", "2h59m", "2 (0 taken)", 0, "-", "vm-12966-1be6", WHY]
    file = Terminal()
    Output(is_json=False, file=file).table(columns, [row, row], spare=("adapter", "watermark", "backfills"))
    lines = file.getvalue().splitlines()
    assert lines[-1] == "not shown for want of room: adapter, watermark (--wide shows all)"
    assert "holes" not in file.getvalue()
    assert max(map(len, lines)) <= 80
    assert sum("mall/s1" in line for line in lines) == 2
    assert any("parked" in line and "2h59m" in line and "vm-12966-1be6" in line for line in lines)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk"])
def test_a_terminal_without_utf_8_gets_what_it_lacks_as_numbers(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    for is_json in (False, True):
        monkeypatch.setattr("sys.stdout", terminal := TextIOWrapper(BytesIO(), encoding=encoding, write_through=True))
        out = Output(is_json=is_json)
        out.say("and 3 more … \u0ca0")
        out.table(["why"], [["\u0ca0…é"]])
        out.result({"why": "\u0ca0…é"})
        written = terminal.buffer.getvalue().decode(encoding)
        assert (json.loads(written) == {"why": "\u0ca0…é"}) if is_json else (written.count("\\u0ca0") == 2)


words = st.text(alphabet="abcdefgh-/.0123456789", min_size=1, max_size=64)


@given(
    columns=st.lists(st.sampled_from([*sorted(IDS), "why", "state", "from", "tried"]), min_size=1, max_size=10),
    data=st.data(),
)
def test_no_id_is_ever_broken(columns: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*(words for _ in columns)), min_size=1, max_size=4))
    lines = printed(columns, rows, file=Terminal()).splitlines()
    assert max(map(len, lines)) <= 80
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            assert column not in IDS or any(cell in line.split() for line in lines)
