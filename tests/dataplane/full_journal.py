"""Large events, and a journal without disk space for a new segment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from pyservice._native import Refused
from pyservice.dataplane.engine import Engine
from pyservice.errors import ServiceError
from tests.support.data_plane_service import attach_lobby
from tests.support.waiting import eventually

_NAMESPACE = bytes(range(16))
_VERSION = bytes(range(16, 32))
_TAGS = [("tag", "." * 60_000)]
_FILES_MAX = 1_000


async def write_large_event(engine: Engine) -> None:
    lobby = attach_lobby(engine, _NAMESPACE, _VERSION, tags=_TAGS)
    await engine.detach([_NAMESPACE], lobby, None)


async def fill_journal(engine: Engine, journal_dir: Path) -> Callable[[], Awaitable[None]]:
    """Redirects the files of new segments to /dev/full, and uses up the prepared ones except the
    reserve.

    Returns the function that frees the disk.
    """

    async def has_credit() -> bool:
        status = engine.status()
        return status.credit_bytes > status.reserve_bytes

    files: list[Path] = []
    for number in range(_FILES_MAX):
        file = journal_dir / f"segment-{number:012}.tmp"
        with contextlib.suppress(FileExistsError):  # The file already has disk space.
            file.symlink_to("/dev/full")
            files.append(file)
    while await has_credit():
        with contextlib.suppress(ServiceError, Refused):  # STORAGE_FULL near the end
            await write_large_event(engine)
        await asyncio.sleep(0)

    async def release() -> None:
        for file in files:
            file.unlink(missing_ok=True)
        await eventually(has_credit)

    return release
