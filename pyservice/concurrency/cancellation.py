"""Cancellation of asyncio tasks: work that must finish, and tasks that must end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def await_despite_cancel(work: Awaitable[Result]) -> Result:
    """Awaits `work` to its end, even if the caller is cancelled. Then raises CancelledError."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError as error:
        cancellation = error
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
    if not task.cancelled():
        task.exception()
    raise cancellation


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancels the tasks and waits for their end. Ignores their errors.

    If the caller is cancelled, the wait ends early.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
