"""Versions that another one replaced while lobbies of theirs were made and not begun (design section 2: who was
promised a place keeps it, though the lobby drains).

Only in memory, and only while such lobbies start: after a restart of the data plane a lobby whose order nobody had
taken is not started any more.
"""

from __future__ import annotations

from typing import Protocol

from pyservice.dataplane.configuration import ResolvedNamespace
from pyservice.dataplane.native import Lobby


class Starts(Protocol):
    """The engine, as far as it is asked here."""

    def starts_of_version(self, namespace: bytes, version: bytes) -> bool: ...


class FormerVersions:
    """With what lobbies are started that were made for a version that is not the current one any more."""

    def __init__(self, servers: Starts) -> None:
        self._servers = servers
        self._held: dict[tuple[bytes, bytes], ResolvedNamespace] = {}

    def __len__(self) -> int:
        return len(self._held)

    def retire(self, namespace: ResolvedNamespace) -> None:
        """Another version takes its place now."""
        key = namespace.namespace_id, namespace.version_id
        if self._servers.starts_of_version(*key):
            self._held[key] = namespace

    def forget(self) -> None:
        """Drops those of which no lobby starts any more. Called whenever somebody asks what is wanted."""
        over = [key for key in self._held if not self._servers.starts_of_version(*key)]
        for key in over:
            del self._held[key]

    def of(self, lobby: Lobby, current: ResolvedNamespace) -> ResolvedNamespace | None:
        """The namespace as it was when the lobby was made; None: nobody knows any more."""
        if current.version_id == lobby.version:
            return current
        return self._held.get((lobby.namespace, lobby.version))
