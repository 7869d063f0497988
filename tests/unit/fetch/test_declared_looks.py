"""Second looks: a file declares them, and a setting of any level counts before it."""

import pytest

from actors.fetch.rules.cutting import cut
from actors.fetch.rules.ledger import first_ledger
from actors.fetch.rules.settings import USUAL_AGAIN, FetchSettings, resolve
from actors.fetch.slice_allocator import with_declared
from platforms.adapter import Declaration
from tests.unit.platforms.declared_example import adapter

HOUR = 3_600_000


def looks_of(settings: FetchSettings, declared: Declaration) -> tuple[int, ...]:
    """Return after which delays closed windows are read once more, by the passes that are cut."""
    ledger = cut(first_ledger(0), with_declared(settings, declared), 2 * HOUR)
    return tuple(each.delay_ms for each in ledger.passes if each.kind == "a")


@pytest.mark.parametrize(
    ("level", "declared", "looks"),
    [
        ({}, None, USUAL_AGAIN),
        ({}, ["1h", "3h"], (HOUR, 3 * HOUR)),
        ({}, [], ()),
        ({"again": "auto"}, ["1h"], (HOUR,)),
        ({"again": ["2h"]}, ["1h"], (2 * HOUR,)),
        ({"again": []}, ["1h"], ()),
    ],
)
def test_a_setting_counts_before_the_file_and_the_file_before_the_usual_looks(
    level: dict[str, object], declared: list[str] | None, looks: tuple[int, ...]
) -> None:
    file = adapter(**({} if declared is None else {"again": declared}))
    nothing: dict[str, object] = {}
    for levels in ((level, nothing, nothing), (nothing, level, nothing), (nothing, nothing, level)):
        assert looks_of(resolve(*levels), file.declaration) == looks


def test_a_wider_level_that_says_auto_leaves_it_to_the_file() -> None:
    settings = resolve({"again": ["10m"]}, {"again": "auto"}, {})
    assert looks_of(settings, adapter(again=["1h"]).declaration) == (HOUR,)
