"""Configuration feed of a data plane that applies test configurations."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyservice.dataplane.configuration_feed import HELD_BYTES_MAX, ConfigurationFeed
from pyservice.dataplane.feed_files import FeedFiles
from pyservice.dataplane.feed_validation import OperatorLimits
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.observability.metrics import FeedMetrics
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from tests.support.namespace_configurations import NAMESPACE_ID, configuration


def numbered(number: int, **changes: Any) -> dict[str, Any]:
    namespace_id = f"0192f000-0000-7000-8000-{number:012x}"
    return {"namespace_id": namespace_id, "name_id": f"n{number}", **changes}


class Plane:
    def __init__(
        self,
        folder: Path,
        held_bytes_max: int = HELD_BYTES_MAX,
        group_bytes_max: int = 1 << 26,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.namespaces = NamespaceIndex()
        self.metrics = FeedMetrics()
        limits = OperatorLimits(
            player_limit_max=256, regions={"local"}, configuration_bytes=group_bytes_max
        )
        self.feed = ConfigurationFeed(
            FeedFiles(folder),
            self.namespaces,
            limits,
            self.metrics,
            now_s,
            held_bytes_max=held_bytes_max,
        )
        self.feed.load()

    def again(self) -> Plane:
        return Plane(self.folder)

    async def apply(self, epoch: int = 0, revision: int = 1, **changes: Any) -> str:
        request = pb.ApplyRequest(
            configuration=configuration(source_epoch=epoch, revision=revision, **changes)
        )
        return (await self.feed.apply(request)).WhichOneof("outcome") or ""

    async def remove(
        self, epoch: int = 0, revision: int = 1, namespace_id: str = NAMESPACE_ID
    ) -> str:
        request = pb.RemoveRequest(namespace_id=namespace_id, source_epoch=epoch, revision=revision)
        return (await self.feed.remove(request)).WhichOneof("outcome") or ""

    async def revisions(self) -> dict[str, tuple[int, int]]:
        answer = await self.feed.held_configurations(pb.HeldRequest())
        return {one.namespace_id: (one.source_epoch, one.revision) for one in answer.configurations}

    def display_name(self) -> str | None:
        stored = self.namespaces.configuration(raw_id(NAMESPACE_ID))
        return stored.display_name if stored else None
