"""Distinguishes a GeneratorExit of user code from the one that closes a coroutine which no task runs any more."""

import asyncio


def is_run_by(task: "asyncio.Task[object] | None") -> bool:
    """Return whether the task runs at this moment. If it does, its own code has raised the exception. A coroutine that
    is closed from outside, because its loop is gone, is run by no task, and its GeneratorExit must propagate."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:  # no loop runs here
        return False
