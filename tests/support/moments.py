"""How a test waits for a condition: it looks again after a moment.

A test that looks all the time takes a core from what it waits for, and from the tests beside it.
"""

import anyio

MOMENT_S = 0.005


async def a_moment() -> None:
    """Wait as long as lies between two looks at a condition."""
    await anyio.sleep(MOMENT_S)
