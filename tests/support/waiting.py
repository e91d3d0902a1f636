"""Waiting in tests: for a condition with one generous timeout, or for a limit of the product.

A test waits up to PATIENCE_S for an event, however busy the machine is. A test of a promised time
uses `within`. It has the marker `timing`, with which it runs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

PATIENCE_S: Final = 30.0
"""Maximum wait of a test in seconds. It must be shorter than 40 s, after which a watch without
changes responds.
"""
POLL_S: Final = 0.01
Found = TypeVar("Found")


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Asserts that the block takes at most `limit_s` seconds of the monotonic clock."""
    began_s = time.monotonic()
    yield
    passed_s = time.monotonic() - began_s
    assert passed_s <= limit_s, f"took {passed_s:.2f} s, more than {limit_s} s"


def until(condition: Callable[[], Found]) -> Found:
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, "the condition was not met"
        time.sleep(POLL_S)
    return value


async def until_met(condition: Callable[[], object]) -> None:
    """Waits for a condition on the event loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(POLL_S / 5)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def eventually(check: Any, timeout_s: float = PATIENCE_S) -> Any:
    """Waits for the first true value of an asynchronous check and returns the value."""
    end = time.monotonic() + timeout_s
    while not (result := await check()):
        assert time.monotonic() < end, f"not within {timeout_s} s: {result!r}"
        await asyncio.sleep(POLL_S)
    return result


async def is_blocked(task: asyncio.Future[Any]) -> bool:
    """Returns whether the task has not ended after a short time in which it could."""
    done, _ = await asyncio.wait({task}, timeout=0.1)
    return not done
