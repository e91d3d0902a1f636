"""A feed file with a real configuration feed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pyservice.dataplane.configuration_feed import ConfigurationFeed
from pyservice.dataplane.feed_files import FeedFiles
from pyservice.dataplane.feed_validation import OperatorLimits
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.static_feed import StaticFeed
from pyservice.errors import ServiceError
from pyservice.observability.metrics import FeedMetrics
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from tests.support.namespace_configurations import NAMESPACE_ID
from tests.support.waiting import cancel

RAW_ID = bytes.fromhex(NAMESPACE_ID.replace("-", ""))


class LocalFeed:
    def __init__(self, feed: ConfigurationFeed) -> None:
        self.check = feed.check
        self._apply = feed.apply
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def apply(self, request: pb.ApplyRequest) -> pb.ApplyResponse:
        if self.meanwhile is not None:
            await self.meanwhile()
        return await self._apply(request)


class StaticFeedScene:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "feed.json"
        self.namespaces = NamespaceIndex()
        limits = OperatorLimits(player_limit_max=256, regions={"local"})
        self._feed = ConfigurationFeed(
            FeedFiles(folder / "feed"), self.namespaces, limits, FeedMetrics()
        )
        self._feed.load()
        self.away_for = 0
        self.never = ""
        self.local = LocalFeed(self._feed)
        self.static = StaticFeed(self.path, self, self.local, retry_s=0.001)

    def write(self, *namespaces: dict[str, Any], **other: Any) -> None:
        self.path.write_text(json.dumps({"namespaces": list(namespaces), **other}))

    async def apply(self, request: pb.ApplyRequest) -> pb.ApplyResponse:
        self._maybe_away(request.configuration.namespace_id)
        return await self._feed.apply(request)

    async def remove(self, request: pb.RemoveRequest) -> pb.RemoveResponse:
        self._maybe_away(request.namespace_id)
        return await self._feed.remove(request)

    def _maybe_away(self, namespace_id: str) -> None:
        if namespace_id == self.never:
            raise ServiceError("OVERLOADED")
        if self.away_for:
            self.away_for -= 1
            raise ServiceError("STORAGE_FULL")

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.static.run())
        try:
            await self.static.wait_fed()
            yield
        finally:
            await cancel(task)

    async def feed(self) -> tuple[str, ...]:
        async with self.feeding():
            return self.static.problems

    async def feed_again(self) -> tuple[str, ...]:
        self.static.reload()
        return await self.feed()

    def is_good(self, digest: bytes) -> bool:
        return self.namespaces.native.of_service_token(digest) is not None
