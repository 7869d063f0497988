"""Windows and readings that the tests of a reading share."""

from hypothesis import strategies as st

from platforms.adapter import (
    Declaration,
    Row,
)
from platforms.bounds import Window
from platforms.reading import Reading
from tests.unit.platforms.listing_model import Listed, ModelPlatform, read_all

WINDOW = Window(0, 64)
WIDE = Window(0, 1_000)
times = st.integers(0, 63)
many_times = st.lists(times | st.just(7), max_size=40)


def orders_at(*times_ms: int) -> list[Listed]:
    return [Listed(at, f"o{number}", 1) for number, at in enumerate(times_ms)]


def read(platform: ModelPlatform, declared: Declaration, window: Window = WINDOW) -> tuple[Reading, list[Row]]:
    reading = Reading(declared, window)
    return reading, [row for rows in read_all(reading, platform) for row in rows]
