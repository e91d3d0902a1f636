"""A service that lets a test block its commits."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.databases import KINDS, Databases
from tests.support.killed_service import LOG, KilledService
from tests.support.postgres_proxy import open_postgres_proxy


class BlockedCommits(Protocol):
    @property
    def waiting(self) -> int: ...


class BlockedCommitsService(KilledService):
    block_commits: Callable[[], contextlib.AbstractContextManager[BlockedCommits]]


@pytest.fixture(scope="module", params=KINDS)
async def full_service(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    shim_library: Path,
    databases: Databases,
) -> AsyncIterator[BlockedCommitsService]:
    url = databases.url(request.param)
    async with contextlib.AsyncExitStack() as stack:
        proxy = None if url is None else await stack.enter_async_context(open_postgres_proxy(url))
        full_service = BlockedCommitsService(
            tmp_path_factory.mktemp("s"), shim_library, None if proxy is None else proxy.url
        )
        stack.push_async_callback(asyncio.to_thread, full_service.close)
        on_disk = functools.partial(full_service.shim.stalled, "fdatasync fsync", LOG)
        full_service.block_commits = on_disk if proxy is None else proxy.block_commits
        await asyncio.to_thread(full_service.start)
        yield full_service
