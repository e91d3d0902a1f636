"""Large events, and a journal without disk space for a new segment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from pyservice.dataplane.engine import Engine
from pyservice.errors import ServiceError
from tests.support.waiting import eventually

_NAMESPACE = bytes(range(16))
_VERSION = bytes(range(16, 32))
_TAGS = [("tag", "." * 60_000)]
_FILES_MAX = 1_000


async def write_large_event(engine: Engine) -> None:
    lobby, _ = await engine.attach(
        _NAMESPACE,
        _VERSION,
        "duel",
        "local",
        [],
        tags=_TAGS,
        max_players=(2, 2, 2),
        player_token_ttl_ms=60_000,
        heartbeat_timeout_ms=30_000,
        heartbeat_grace_ms=10_000,
        is_join_enabled=True,
        create_ts_ms=0,
        lobby_count_max=10,
        idempotency=None,
        deadline=None,
    )
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
        with contextlib.suppress(ServiceError):  # STORAGE_FULL near the end
            await write_large_event(engine)
        await asyncio.sleep(0)

    async def release() -> None:
        for file in files:
            file.unlink(missing_ok=True)
        await eventually(has_credit)

    return release
