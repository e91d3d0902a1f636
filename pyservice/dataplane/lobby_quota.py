"""Quota of the lobbies of a developer group.

Only the event loop creates lobbies. So a check is exact if no other task runs between the check and
the command that creates the lobby. Lobbies that end meanwhile only make room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import ResolvedNamespace
from pyservice.errors import ServiceError
from pyservice.settings.quotas import QUOTAS

ReadCounts = Callable[[int], tuple[int, bool, list[tuple[bytes, int, int]]]]
_QUOTA: Final = QUOTAS["lobbies"]


class LobbyQuota:
    def __init__(self, read_counts: ReadCounts, namespaces: NamespaceIndex, limit: int) -> None:
        """`read_counts` returns the counts that changed since a generation. `limit` is the default
        of groups without a limit of their own.
        """
        self._read_counts = read_counts
        self._namespaces = namespaces
        self.limit = limit
        self._generation = 0
        self._lobbies: dict[bytes, int] = {}
        self._use: Counter[bytes] = Counter()
        self._groups: dict[bytes, bytes] = {}

    def refusal(self, namespace: ResolvedNamespace) -> ServiceError | None:
        """Returns QUOTA_EXCEEDED if the namespace's group has as many lobbies as it may have.

        A namespace without a group has no quota. Only a feed file can contain one.
        """
        if not namespace.has_group:
            return None
        own = namespace.group_lobbies_max
        limit = self.limit if own is None else own
        self._update()
        use = self._use[namespace.tenant]
        return _QUOTA.exceeded(limit, use) if use >= limit else None

    def _update(self) -> None:
        self._generation, is_all, changed = self._read_counts(self._generation)
        if is_all:
            self._lobbies.clear()
            self._use.clear()
        for namespace_id, _, count in changed:
            group = self._group_of(namespace_id)
            self._use[group] += count - self._lobbies.get(namespace_id, 0)
            if count:
                self._lobbies[namespace_id] = count
            else:
                self._lobbies.pop(namespace_id, None)
                self._groups.pop(namespace_id, None)
            if not self._use[group]:
                del self._use[group]

    def _group_of(self, namespace_id: bytes) -> bytes:
        """Returns the group of a namespace, also of a removed namespace with live lobbies."""
        group = self._groups.get(namespace_id)
        if group is None:
            is_known = self._namespaces.is_known(namespace_id)
            group = self._namespaces.resolved(namespace_id).tenant if is_known else namespace_id
            self._groups[namespace_id] = group
        return group
