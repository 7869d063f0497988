"""How far an instance is, for eyes: one line, and a bar that follows it on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streams.clock import monotonic_s

if TYPE_CHECKING:
    from actors.batch.views import View

__all__ = ["Speed", "bar_text", "following"]

WINDOW_S = 5.0
ONE_S = 0.25


class Speed:
    """Items a second, over the last seconds. Items are counted a chunk at a time, so what counts is from one change to
    another: up to now would show half the rate just before a chunk ends."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, int]] = []

    def of(self, count: int, now_s: float) -> float:
        """Return the rate at which `count` grew."""
        if self._changes and count < self._changes[-1][1]:
            self._changes.clear()  # another step counts, or another pass
        self._note(count, now_s)
        while len(self._changes) > 2 and now_s - self._changes[1][0] > WINDOW_S:
            del self._changes[0]
        (first_s, first), (last_s, last) = self._changes[0], self._changes[-1]
        is_stalled = now_s - last_s > max(WINDOW_S, 2 * (last_s - first_s))
        took_s = (now_s if is_stalled else last_s) - first_s
        return (last - first) / took_s if took_s > 0 else 0.0

    def _note(self, count: int, now_s: float) -> None:
        """Keep a change. Chunks that end at nearly the same time are one."""
        if not self._changes or (count > self._changes[-1][1] and now_s - self._changes[-1][0] > ONE_S):
            self._changes.append((now_s, count))
        elif len(self._changes) > 1:
            self._changes[-1] = self._changes[-1][0], count


def bar_text(view: "View") -> str:
    """Return how an instance stands, in one line."""
    counts, parts = view.counts, [view.state]
    if view.items is not None:
        parts.append(f"{counts.ended} of {view.items} items")
    elif view.step is not None and view.step.done:
        parts.append(f"{view.step.done} rows read")
    for name in ("succeeded", "failed", "unknown", "skipped", "cancelled"):
        if getattr(counts, name):
            parts.append(f"{getattr(counts, name)} {name}")
    if view.passes > 1:
        parts.append(f"pass {view.passes}")
    if view.waits:
        parts.append(view.waits)
    return ", ".join(parts)


def far(view: "View") -> tuple[int, int | None]:
    """Return how many of how many the present step has behind it."""
    if view.state in ("splitting", "reducing"):
        done, total = (view.step.done, view.step.total) if view.step is not None else (0, None)
        return done, total if total is not None or view.state == "splitting" else view.items
    return view.counts.ended, view.items


@contextmanager
def following() -> "Iterator[Callable[[View], None]]":
    """Give what is told of each look at an instance: on a terminal it moves a bar, elsewhere it prints what changed."""
    if not sys.stderr.isatty():
        yield _changes()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TextColumn("{task.fields[far]}"),
        TextColumn("[red]{task.fields[failed]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, speed = bar.add_task("pending", total=None, far="", failed=""), Speed()

        def look(view: "View") -> None:
            done, total = far(view)
            rate = speed.of(done, monotonic_s())
            failed = view.counts.failed + view.counts.unknown
            bar.update(
                task,
                description=view.state,
                completed=done,
                total=total,
                far=f"{done:,}{f' of {total:,}' if total is not None else ''}{f', {rate:,.0f}/s' if rate else ''}",
                failed=f"{failed:,} failed" if failed else view.waits,
            )

        yield look


def _changes() -> "Callable[[View], None]":
    before = ("", "")

    def look(view: "View") -> None:
        nonlocal before
        if (view.state, view.waits) != before:
            before = view.state, view.waits
            print(bar_text(view), file=sys.stderr, flush=True)

    return look
