"""Start of trials, which the control plane requests: `hosting.internal.v1.Trials`.

A trial is a lobby of a version that its namespace need not run. It shows whether a game server of the
version starts. The engine keeps it from players, and ends it at its deadline.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyservice.dataplane.configuration_feed import ConfigurationFeed
from pyservice.dataplane.engine_commands import ProcessCommands
from pyservice.dataplane.lobby_templates import LobbyTemplates
from pyservice.dataplane.runtime_connection import RuntimeConnection
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.pb.hosting.internal.v1 import trials_pb2 as pb
from pyservice.schema.validation import require_valid


class Trials:
    def __init__(
        self,
        feed: ConfigurationFeed,
        processes: ProcessCommands,
        lobby_templates: LobbyTemplates,
        runtime: RuntimeConnection,
        regions: Sequence[str],
    ) -> None:
        self._feed = feed
        self._processes = processes
        self._lobby_templates = lobby_templates
        self._runtime = runtime
        self._regions = regions

    async def start(self, request: pb.StartTrialRequest) -> pb.StartTrialResponse:
        """Starts a lobby in the first region of the game mode, and returns when it is durable.

        Raises NAMESPACE_NOT_FOUND until the feed has sent the namespace, and
        MATCHMAKER_GAME_MODE_NOT_FOUND, MATCHMAKER_TOO_MANY_LOBBIES, QUOTA_EXCEEDED,
        CAPACITY_EXHAUSTED, PORTS_EXHAUSTED and STORAGE_FULL.
        """
        require_valid(request)
        prepared = await self._feed.prepare(request.configuration)
        if isinstance(prepared, feed_pb2.Refused):
            return pb.StartTrialResponse(refused=prepared)
        namespace = prepared.resolved
        mode = namespace.modes.get(request.game_mode)
        if mode is None:
            raise ServiceError("MATCHMAKER_GAME_MODE_NOT_FOUND")
        await self._lobby_templates.wait_for_runtime([mode])
        if not self._feed.has_namespace(namespace.namespace_id):
            raise ServiceError("NAMESPACE_NOT_FOUND")
        region = next(filter(mode.allows_region, self._regions), self._regions[0])
        template = self._lobby_templates.for_trial(namespace, mode, region, request.timeout_ms)
        # Kept before the start, because the runtime can request the lobby at once.
        self._runtime.other_versions.keep(namespace)
        lobby_id = await self._processes.start_idle(
            namespace.namespace_id, namespace.version_id, template
        )
        return pb.StartTrialResponse(lobby_id=format_uuid(lobby_id))
