"""Texts close to valid ones. Random text is nearly always refused, so it shows nothing of what a reader accepts."""

from hypothesis import strategies as st

MOST_EDITS = 2


def edited(valid: st.SearchStrategy[str], signs: str) -> st.SearchStrategy[str]:
    """Return valid texts, each with up to two places changed: a character left out, or one of `signs` put in."""
    place = st.tuples(st.integers(0, 1_000), st.booleans(), st.sampled_from(["", *signs]))
    return st.builds(_with_edits, valid, st.lists(place, max_size=MOST_EDITS))


def edited_bytes(valid: st.SearchStrategy[bytes], signs: bytes) -> st.SearchStrategy[bytes]:
    """Do the same to bytes."""
    as_text = edited(valid.map(lambda body: body.decode("latin-1")), signs.decode("latin-1"))
    return as_text.map(lambda text: text.encode("latin-1"))


def _with_edits(text: str, places: list[tuple[int, bool, str]]) -> str:
    for number, is_cut, sign in places:
        at = number % (len(text) + 1)
        text = text[:at] + sign + text[at + is_cut :]
    return text
