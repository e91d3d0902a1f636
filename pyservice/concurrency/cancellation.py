"""Waits for what must not be left in the middle, whoever gives up waiting for it; and ends what nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def await_despite_cancel(work: Awaitable[Result]) -> Result:
    """Waits for work to its end, also when the caller is cancelled, however often: then it is over, done or not, and
    nobody touches what it was at meanwhile.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError as error:
        cancelled = error
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()
    raise cancelled


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancels them; they are over then, whatever they answered. That the caller is cancelled meanwhile is not mistaken
    for that of what it waits for: to await a task that was cancelled, and suppress what comes, would lose it.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
