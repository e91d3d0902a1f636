"""Versions that another one replaced while lobbies of theirs were made and not begun (design section 2: who was
promised a place keeps it, though the lobby drains).

Only in memory, and only while such lobbies start: after a restart of the data plane a lobby whose order nobody had
taken is not started any more.
"""

from __future__ import annotations

from collections.abc import Callable

from pyservice.dataplane.configuration import ResolvedNamespace
from pyservice.dataplane.native import Lobby
from pyservice.dataplane.servers import Servers


class FormerVersions:
    """With what lobbies are started that were made for a version that is not the current one any more."""

    def __init__(self, servers: Servers, lobby: Callable[[bytes], Lobby | None]) -> None:
        self._servers = servers
        self._lobby = lobby
        self._held: dict[tuple[bytes, bytes], ResolvedNamespace] = {}

    def retire(self, namespace: ResolvedNamespace) -> None:
        """Another version takes its place now."""
        held = {**self._held, (namespace.namespace_id, namespace.version_id): namespace}
        self._held = {key: one for key, one in held.items() if self._is_needed(*key)}

    def of(self, lobby: Lobby, current: ResolvedNamespace) -> ResolvedNamespace | None:
        """The namespace as it was when the lobby was made; None: nobody knows any more."""
        if current.version_id == lobby.version:
            return current
        return self._held.get((lobby.namespace, lobby.version))

    def _is_needed(self, namespace_id: bytes, version_id: bytes) -> bool:
        ids = self._servers.lobbies_of_version(namespace_id, version_id)
        return any(
            lobby.is_ours and not (lobby.is_ready or lobby.is_stopping)
            for lobby in map(self._lobby, ids)
            if lobby is not None
        )
