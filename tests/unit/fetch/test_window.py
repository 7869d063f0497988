"""What a slice asks for: itself, and the overlaps on both sides."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.fetcher.decisions import ReadSlice
from actors.fetch.fetcher.window import widened
from actors.fetch.rules.cutting import cut
from actors.fetch.rules.ledger import first_ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey

overlaps = st.integers(0, 10_000)


@given(overlaps, overlaps, overlaps, st.integers(1, 90_000), st.integers(0, 10**12))
def test_neighbouring_slices_ask_for_the_time_around_their_seam_twice(
    before_ms: int, after_ms: int, declared_ms: int, slice_ms: int, start_ms: int
) -> None:
    """The larger one of the setting and the adapter's own overlap counts before a slice."""
    settings = FetchSettings(slice_ms=slice_ms, overlap_before_ms=before_ms, overlap_after_ms=after_ms, max_open=4)
    ledger = cut(first_ledger(start_ms), settings, start_ms + 10**9)
    asked = []
    for piece in ledger.open:
        window = widened(ReadSlice(SourceKey("mall", "s1"), piece, settings), declared_ms)
        assert piece.start_ms - window.start_ms == max(before_ms, declared_ms)
        assert window.end_ms - piece.end_ms == after_ms
        asked.append(window)
    assert len(asked) == 4
    for first, second in pairwise(asked):
        assert first.end_ms - second.start_ms == max(before_ms, declared_ms) + after_ms
