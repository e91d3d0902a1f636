"""What becomes of a configuration that the data plane refuses (decisions 8.2): its version goes back to the one before,
unless it runs, and whoever set it is told why.

Owns what is refused and why, and who may be taken when another namespace gives something up. What is said of it is
`feed_refusals`', when a namespace is sent is `feeder`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyservice.control.feed_refusals import (
    STORED,
    SWITCHED_BACK,
    is_of_version,
    name_of,
    reason_of,
    refusal,
)
from pyservice.control.holdings import Holdings
from pyservice.control.wanted import Wanted
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2
from pyservice.storage import namespaces
from pyservice.storage.database import Database

_NOTHING: Final = (None, None)

_log = get_logger("feeder")

Message = configuration_pb2.NamespaceConfiguration


class RefusedConfigurations:
    """By namespace."""

    def __init__(
        self, database: Database, holdings: Holdings, taken_back: Callable[[str], None]
    ) -> None:
        """`taken_back` hears of a game of which a namespace went back to the version that it ran."""
        self._database = database
        self._holdings = holdings
        self._taken_back = taken_back
        self._versions: dict[str, tuple[str, ServiceError]] = {}
        """Namespace to the version that was refused last, as long as it is not taken."""
        self._claiming: set[str] = set()
        """Namespaces that want what another one has."""
        self.reasons: dict[str, str] = {}
        """Namespace to the first reason: what the data plane does not take."""
        self.count = 0
        """Refusals since the start."""

    def error_of(self, namespace_id: str, version_id: str | None) -> ServiceError | None:
        """What whoever sets this version is told when it was refused last."""
        refused, error = self._versions.get(namespace_id, _NOTHING)
        return error if refused == version_id else None

    def version_is_taken(self, namespace_id: str, version_id: str) -> None:
        """It is, or would be."""
        refused, _ = self._versions.get(namespace_id, _NOTHING)
        if refused == version_id:
            del self._versions[namespace_id]

    def is_taken(self, message: Message) -> set[str]:
        """The data plane holds it. What it gave up may be what others were refused for: these, once."""
        self.reasons.pop(message.namespace_id, None)
        self.version_is_taken(message.namespace_id, message.current_version_id)
        claiming, self._claiming = self._claiming, set()
        return claiming

    def note(self, message: Message, reason: str) -> None:
        """For whoever runs the service."""
        name = name_of(message)
        self.reasons[message.namespace_id] = f"{name}: {reason}"
        _log.error("configuration refused by the data plane", namespace=name, reason=reason)

    async def is_to_be_sent_again(
        self, message: Message, refused: feed_pb2.Refused, wanted: Wanted, number: int
    ) -> bool:
        """Takes the version back, unless it runs, and tells who waits: for change `number` at most, or for the version.
        Whether there is something else to be sent now.
        """
        namespace_id, version_id = message.namespace_id, message.current_version_id
        self.count += 1
        orphans = self._holdings.orphans
        self.note(message, reason_of(refused, orphans))
        running = self._holdings.version_id(namespace_id)
        if any(problem.held_by for problem in refused.problems):
            self._claiming.add(namespace_id)
        # A version is not to blame for a domain that another namespace has.
        if running in ("", version_id) or not is_of_version(refused):
            error = refusal(message, refused, STORED, orphans)
            wanted.fail(lambda waiter: waiter.number <= number, error)
            return False
        if await self._take_back(namespace_id, version_id, running):
            self._taken_back(message.game.game_id)
        error = refusal(message, refused, SWITCHED_BACK, orphans)
        self._versions[namespace_id] = version_id, error
        # The others wait for what is sent now.
        wanted.fail(lambda waiter: waiter.version_id == version_id, error)
        return True

    async def _take_back(self, namespace_id: str, version_id: str, running: str) -> bool:
        """Whether the records still had it. It goes back to the version before it, which may be on its way as well."""
        async with self._database.write() as tx:
            newest = await namespaces.history(tx, namespace_id, None, 2)
            entry = newest[0].entry_id if newest else ""
            before = newest[1].version_id if len(newest) > 1 else running
            if before == version_id:
                before = running
            return await namespaces.take_back_version(tx, namespace_id, version_id, before, entry)
