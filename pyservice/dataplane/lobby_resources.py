"""Processor and memory of the lobbies that the service runs, by developer group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import Lobby


class Resources(NamedTuple):
    cpu_millicores: int = 0
    memory_mb: int = 0


NO_RESOURCES: Final = Resources()


class LobbyResources:
    """Resources of each lobby from its creation to its end. Attached lobbies have none.

    A lobby keeps the size that its tier had when it was counted first.
    """

    def __init__(
        self, source: Engine, namespaces: NamespaceIndex, size_of: Callable[[Lobby], Resources]
    ) -> None:
        self._source = source
        self._namespaces = namespaces
        self._size_of = size_of
        self._sequence = 0
        self._lobbies: dict[bytes, tuple[bytes, Resources]] = {}
        self._groups: dict[bytes, Resources] = {}

    def of_lobby(self, lobby_id: bytes) -> Resources:
        self._update()
        _, size = self._lobbies.get(lobby_id, (b"", NO_RESOURCES))
        return size

    def of_group(self, group: bytes) -> Resources:
        self._update()
        return self._groups.get(group, NO_RESOURCES)

    def _update(self) -> None:
        self._sequence, is_complete, lobbies, ended = self._source.processes.wanted_since(
            self._sequence
        )
        if is_complete:
            ended = [*self._lobbies.keys() - {lobby_id for lobby_id, _ in lobbies}]
        for lobby_id in ended:
            group, size = self._lobbies.pop(lobby_id, (b"", NO_RESOURCES))
            self._add(group, -size.cpu_millicores, -size.memory_mb)
        for lobby_id, _ in lobbies:
            lobby = None if lobby_id in self._lobbies else self._source.lobby(lobby_id)
            if lobby is not None:
                group, size = self._group_of(lobby.namespace), self._size_of(lobby)
                self._lobbies[lobby_id] = group, size
                self._add(group, *size)

    def _add(self, group: bytes, cpu_millicores: int, memory_mb: int) -> None:
        before = self._groups.pop(group, NO_RESOURCES)
        after = Resources(before.cpu_millicores + cpu_millicores, before.memory_mb + memory_mb)
        if any(after):
            self._groups[group] = after

    def _group_of(self, namespace_id: bytes) -> bytes:
        """Returns the group of a namespace, or the namespace's id if the namespace was removed."""
        is_known = self._namespaces.is_known(namespace_id)
        return self._namespaces.group_of(namespace_id) if is_known else namespace_id
