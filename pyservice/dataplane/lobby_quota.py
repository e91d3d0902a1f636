"""Quotas of the lobbies of a developer group: their number, processor and memory.

Only the event loop creates lobbies. So a check is exact if no other task runs between the check and
the command that creates the lobby. Lobbies that end meanwhile only make room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyservice.dataplane.lobby_resources import NO_RESOURCES, LobbyResources, Resources
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import ResolvedNamespace
from pyservice.errors import ServiceError
from pyservice.settings.quotas import LOBBY_QUOTAS, QUOTAS, QuotaSettings

ReadCounts = Callable[[int], tuple[int, bool, list[tuple[bytes, int, int]]]]


class LobbyQuotaUse(NamedTuple):
    """Limits of a group and their use at one time, by quota. Empty for a namespace without a group."""

    limits: Mapping[str, int]
    uses: Mapping[str, int]

    def refusal(self, size: Resources = NO_RESOURCES) -> ServiceError | None:
        """Returns QUOTA_EXCEEDED if the group may have no further lobby of this size."""
        added = dict(zip(LOBBY_QUOTAS, (1, *size), strict=True))
        for name, limit in self.limits.items():
            # A limit below the use does not concern a lobby that needs nothing of it.
            if added[name] and self.uses[name] + added[name] > limit:
                return QUOTAS[name].exceeded(limit, self.uses[name])
        return None


UNLIMITED = LobbyQuotaUse({}, {})


class LobbyQuota:
    def __init__(
        self,
        read_counts: ReadCounts,
        namespaces: NamespaceIndex,
        resources: LobbyResources,
        defaults: QuotaSettings,
    ) -> None:
        """`read_counts` returns the counts that changed since a generation. `defaults` are the
        limits of groups without limits of their own.
        """
        self._read_counts = read_counts
        self._namespaces = namespaces
        self._resources = resources
        self.defaults = defaults
        self._generation = 0
        self._lobbies: dict[bytes, int] = {}
        self._use: Counter[bytes] = Counter()
        self._groups: dict[bytes, bytes] = {}

    def use_of_group(self, namespace: ResolvedNamespace) -> LobbyQuotaUse:
        """Returns limits and use of the namespace's group.

        A namespace without a group has no quota. Only a feed file can contain one.
        """
        if not namespace.has_group:
            return UNLIMITED
        self._update()
        amounts = (self._use[namespace.tenant], *self._resources.of_group(namespace.tenant))
        own = namespace.group_limits
        limits = {
            name: own[name] if name in own else getattr(self.defaults, name)
            for name in LOBBY_QUOTAS
        }
        return LobbyQuotaUse(limits, dict(zip(LOBBY_QUOTAS, amounts, strict=True)))

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
