"""What a lobby that the service starts is made of: from the configuration of its mode and what was asked for (decisions
4, 5.3, 5.5, 5.8). Whether it may be asked for is in `admission`, whether one is made at all the engine decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from pyservice.dataplane.admission import Admitted, AdmittedCreate
from pyservice.dataplane.configuration import ModePort, ResolvedMode, ResolvedNamespace
from pyservice.dataplane.native import Make

Creation = Make | int | None
"""What find and create give the engine: a lobby, `lobby_count_max` where none can be started, None where none is
wanted.
"""

_KEPT: Final = 10_000
_BY_HOST: Final = frozenset({"http", "https"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a lobby its maker says."""

    tags: Mapping[str, str] = field(default_factory=dict)
    max_players: int | None = None
    publicity: str = "public"
    lobby_config: bytes | None = None


class Settled(Protocol):
    """Who knows whether somebody starts processes."""

    @property
    def is_settled(self) -> bool: ...
    async def settle(self) -> None: ...


class Making:
    """Writes what the engine makes lobbies of."""

    def __init__(
        self,
        can_start: Callable[[str], bool],
        *,
        has_job_domain: bool,
        heartbeat_grace_ms: int,
        settled: Settled | None = None,
    ) -> None:
        """`can_start`: whether somebody is connected who would start a lobby of a tier now. `heartbeat_grace_ms`: of
        modes that say none.
        """
        self._can_start = can_start
        self._settled = settled
        self._has_job_domain = has_job_domain
        self._heartbeat_grace_ms = heartbeat_grace_ms
        self._plain: dict[tuple[bytes, str, str], tuple[ResolvedNamespace, Make]] = {}
        """Those that say nothing of their own, which most finds would have: each is written once."""

    async def settle(self, modes: Iterable[ResolvedMode]) -> bool:
        """After a start it is not known yet whether somebody starts processes: waits for that where it matters. Whether
        it waited.
        """
        if self._settled is None or self._settled.is_settled:
            return False
        if all(mode.runtime.image_id is None for mode in modes):
            return False
        await self._settled.settle()
        return True

    def for_find(
        self, namespace: ResolvedNamespace, admitted: Admitted, asked: Asked
    ) -> Make | int:
        """In the first region, and there the first mode, that can have one (decisions 5.3)."""
        for region in admitted.regions:
            for name in admitted.modes:
                mode = namespace.modes[name]
                if mode.allows_region(region) and self._can_be_started(mode, region):
                    return self._make(namespace, mode, region, asked)
        return namespace.lobby_count_max

    def for_create(
        self, namespace: ResolvedNamespace, admitted: AdmittedCreate, asked: Asked
    ) -> Make | int:
        """Exactly there (decisions 5.5)."""
        if not self._can_be_started(admitted.mode, admitted.region):
            return namespace.lobby_count_max
        return self._make(namespace, admitted.mode, admitted.region, asked)

    def idle(self, namespace: ResolvedNamespace, mode: ResolvedMode, region: str) -> Make | None:
        """One for nobody yet (decisions 5.8). None: it cannot be started now."""
        if not self._can_be_started(mode, region):
            return None
        return self._make(namespace, mode, region, Asked())

    def _can_be_started(self, mode: ResolvedMode, region: str) -> bool:
        return mode.runtime.image_id is not None and self._can_start(mode.place(region).tier)

    def _make(
        self, namespace: ResolvedNamespace, mode: ResolvedMode, region: str, asked: Asked
    ) -> Make:
        if asked.tags or asked != Asked(asked.tags):
            return self._write(namespace, mode, region, asked)
        key = namespace.namespace_id, mode.name, region
        known = self._plain.get(key)
        if known is None or known[0] is not namespace:
            if len(self._plain) >= _KEPT:
                self._plain.clear()
            known = self._plain[key] = namespace, self._write(namespace, mode, region, asked)
        return known[1]

    def _write(
        self, namespace: ResolvedNamespace, mode: ResolvedMode, region: str, asked: Asked
    ) -> Make:
        limits = (mode.max_players, mode.max_players_direct, mode.max_players_party)
        if asked.max_players is not None:
            limits = (asked.max_players,) * 3
        grace_ms = mode.heartbeat_grace_ms
        return Make(
            mode.name,
            region,
            [self._port(name, port) for name, port in sorted(mode.ports.items())],
            tags=sorted(asked.tags.items()),
            max_players=limits,
            player_token_ttl_ms=mode.player_token_ttl_ms,
            heartbeat_timeout_ms=mode.heartbeat_timeout_ms or 0,
            heartbeat_grace_ms=self._heartbeat_grace_ms if grace_ms is None else grace_ms,
            is_join_enabled=mode.is_join_enabled,
            is_public=asked.publicity == "public",
            lobby_config=asked.lobby_config,
            lobby_count_max=namespace.lobby_count_max,
        )

    def _port(self, name: str, port: ModePort) -> tuple[str, str, str, int, int]:
        """How it is reached (decisions 5.9): without edge-guard, by a host name of its own, or by a number."""
        if port.port_range is not None:
            return name, port.protocol, "range", *port.port_range
        is_by_host = self._has_job_domain and port.protocol in _BY_HOST
        return name, port.protocol, "host" if is_by_host else "number", 0, 0
