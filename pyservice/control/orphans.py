"""Namespaces that the data plane holds and no record has: told and removed when whoever runs the service says so.

They are left when a database was lost or replaced. Nothing removes them by itself: players may still play there, and
the database may come back from a backup (static stability).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyservice.control.feeder import Away
from pyservice.control.holdings import orphans_of
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.storage import namespaces
from pyservice.storage.database import Database

_log = get_logger("feeder")


class Holder(Protocol):
    """The data plane. Raises Away, ServiceError."""

    async def held(self, request: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse: ...
    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse: ...


class Orphans:
    """What no record has, as it is now."""

    def __init__(
        self, database: Database, source_epoch: int, client: Holder, removed: Callable[[], None]
    ) -> None:
        """`removed` hears when names and hosts are free again."""
        self._database = database
        self._epoch = source_epoch
        self._client = client
        self._removed = removed

    async def all(self) -> list[feed_pb2.HeldConfiguration]:
        """In order of their names. Raises CONTROL_PLANE_UNAVAILABLE."""
        try:
            answer = await self._client.held(feed_pb2.HeldRequest())
        except Away:
            raise _unreachable() from None
        async with self._database.read() as tx:
            rows = await namespaces.revisions(tx)
        held = {one.namespace_id: one for one in answer.configurations}
        found = orphans_of(held, rows).values()
        return sorted(found, key=lambda one: (one.name, one.namespace_id))

    async def remove(
        self, namespace_ids: Sequence[str] | None = None
    ) -> list[feed_pb2.HeldConfiguration]:
        """Those that were removed; None: all. Raises NAMESPACE_NOT_FOUND, and nothing is removed then;
        CONTROL_PLANE_UNAVAILABLE, and some may be.
        """
        orphans = {one.namespace_id: one for one in await self.all()}
        wanted = list(orphans) if namespace_ids is None else list(namespace_ids)
        unknown = [one for one in wanted if one not in orphans]
        if unknown:
            raise ServiceError(
                "NAMESPACE_NOT_FOUND",
                f"No namespace that the data plane holds without a record: {', '.join(unknown)}. "
                "`pyservice namespace orphans` lists those that there are.",
            )
        removed = []
        try:
            for one in wanted:
                if await self._remove(orphans[one]):
                    removed.append(orphans[one])
        except Away:
            raise _unreachable() from None
        finally:
            if removed:
                self._removed()
        return removed

    async def _remove(self, orphan: feed_pb2.HeldConfiguration) -> bool:
        """False: it was fed anew meanwhile, so it is no orphan."""
        request = feed_pb2.RemoveRequest(
            namespace_id=orphan.namespace_id, source_epoch=self._epoch, revision=0
        )
        if orphan.source_epoch >= self._epoch:
            # Of these records before a backup, or of others that were made while the clock was ahead.
            request.source_epoch = orphan.source_epoch
            request.revision = orphan.revision + 1
        answer = await self._client.remove(request)
        is_removed: bool = answer.HasField("removed")
        _log.warning(
            "namespace without a record removed"
            if is_removed
            else "namespace without a record stays",
            namespace=orphan.name,
            namespace_id=orphan.namespace_id,
        )
        return is_removed


def _unreachable() -> ServiceError:
    return ServiceError(
        "CONTROL_PLANE_UNAVAILABLE", "The data plane holds them and does not answer; try again."
    )
