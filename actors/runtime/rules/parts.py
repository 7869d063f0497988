"""How a long list is cut into requests. Pure."""

from collections.abc import Iterator, Sequence


def parts_of(sizes: Sequence[int], most_size: int, most: int) -> Iterator[slice]:
    """Cut a list into parts of at most `most`, whose sizes add up to at most `most_size`. What is larger is alone in
    its part."""
    start, size = 0, 0
    for at, one in enumerate(sizes):
        if at > start and (size + one > most_size or at - start == most):
            yield slice(start, at)
            start, size = at, 0
        size += one
    if start < len(sizes):
        yield slice(start, len(sizes))
