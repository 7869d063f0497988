"""Tells a GeneratorExit that somebody's code has raised from the one that ends a coroutine nobody runs any more."""

import asyncio


def is_run_by(task: "asyncio.Task[object] | None") -> bool:
    """True if the task runs at this moment: what is raised in it then was raised by its code. A coroutine that is
    closed from outside, since its loop is gone, is run by no task, and its GeneratorExit has to go on up."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:  # no loop runs here
        return False
