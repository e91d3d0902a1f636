"""Scaling of idle lobbies: keeps their number between the limits of each game mode and region.

Also stops empty lobbies after a grace period, and drains lobbies of previous versions. The scaler
stores nothing: after a restart it derives its work from the existing lobbies.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_templates import LobbyTemplates
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import IdleLobbyGroup, Lobby
from pyservice.dataplane.resolved_namespace import ResolvedMode, ResolvedNamespace, raw_id
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger

BACKOFF_S: Final = doubling(1.0, 60.0)
"""Delay after the n-th crash in a row, in seconds."""

_RETRY_S: Final = 1.0
_DRAIN_POLL_INTERVAL_S: Final = 60.0
"""An operator may set the wall clock, so a drain deadline is checked this often."""
_POLL_INTERVAL_S: Final = 0.25
_STEP_INTERVAL_S: Final = 0.01
"""Pause between two steps. Players can change groups thousands of times a second."""

_log = get_logger("lobby_scaling")

GroupKey = tuple[bytes, bytes, str, str]


class EmptyLobbyView(Protocol):
    @property
    def lobby(self) -> bytes: ...
    @property
    def is_ours(self) -> bool: ...
    @property
    def is_findable(self) -> bool: ...
    @property
    def was_used(self) -> bool: ...
    @property
    def empty_ms(self) -> int: ...


class LobbyGroup(Protocol):
    @property
    def starting(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def empty(self) -> Sequence[EmptyLobbyView]: ...


@dataclass(frozen=True, slots=True)
class NoLobbyGroup:
    starting: int = 0
    live: int = 0
    empty: Sequence[EmptyLobbyView] = ()


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Plan for a group, which is all lobbies of one version, game mode and region.

    `start` is the number of lobbies to start now. `stop` contains the lobbies to stop now.
    `recheck_ms` is the time until the next check if no event triggers an earlier one.
    """

    start: int = 0
    stop: tuple[EmptyLobbyView, ...] = ()
    recheck_ms: int | None = None


def plan_group(
    group: LobbyGroup,
    mode: ResolvedMode | None,
    region: str,
    grace_ms: int,
    *,
    is_region_known: bool = True,
    is_draining: Callable[[bytes], bool] = lambda lobby: False,
) -> GroupPlan:
    """Returns the plan for the lobbies of one version, game mode and region.

    `mode` is None if the version is not current or has no such mode. The plan then stops all empty
    lobbies that the service started. A region that the operator removed keeps no idle lobbies. The
    plan stops idle lobbies for which `is_draining` returns True, and replaces them.
    """
    managed = [lobby for lobby in group.empty if lobby.is_ours]
    if mode is None:
        # A draining lobby gets no new players, so it needs no grace period.
        return GroupPlan(stop=tuple(managed))
    settings = mode.settings_in(region)
    draining = {lobby.lobby for lobby in managed if is_draining(lobby.lobby)}
    idle = [
        lobby
        for lobby in group.empty
        if lobby.is_findable and _is_idle(lobby, grace_ms) and lobby.lobby not in draining
    ]
    leaving = [
        lobby
        for lobby in managed
        if (not lobby.is_findable or lobby.lobby in draining) and _is_idle(lobby, grace_ms)
    ]
    is_enabled = is_region_known and mode.allows_region(region)
    low, high = (settings.idle_min, settings.idle_max) if is_enabled else (0, 0)
    surplus = [lobby for lobby in idle if lobby.is_ours][: max(0, len(idle) - high)]
    waiting = [lobby for lobby in managed if not _is_idle(lobby, grace_ms)]
    pending = [grace_ms - lobby.empty_ms for lobby in waiting]
    # A closed lobby that was never used is still loading. Counting it avoids endless replacements.
    loading = sum(not lobby.was_used and lobby.lobby not in draining for lobby in waiting)
    missing = low - len(idle) - group.starting - loading
    return GroupPlan(max(0, missing), (*leaving, *surplus), min(pending, default=None))


def _is_idle(lobby: EmptyLobbyView, grace_ms: int) -> bool:
    return lobby.empty_ms >= grace_ms or (lobby.is_findable and not lobby.was_used)


class CrashBackoff:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._crashes: dict[GroupKey, tuple[Backoff, float]] = {}

    def record(self, key: GroupKey, crash_count: int = 1) -> None:
        if not crash_count:
            return
        now_s = self._now_s()
        self._crashes = {
            group: (backoff, until_s)
            for group, (backoff, until_s) in self._crashes.items()
            if now_s - until_s <= BACKOFF_S[-1]
        }
        backoff, _ = self._crashes.get(key) or (Backoff(BACKOFF_S), 0.0)
        self._crashes[key] = (backoff, now_s + backoff.next_s(crash_count))

    def remaining_s(self, key: GroupKey) -> float:
        _, until_s = self._crashes.get(key, (None, 0.0))
        return max(0.0, until_s - self._now_s())


class LobbyScaler:
    """Starts and stops lobbies by the plan of each group while `run` is running.

    A group is all lobbies of one version, game mode and region.
    """

    def __init__(
        self,
        source: Engine,
        namespaces: NamespaceIndex,
        lobby_templates: LobbyTemplates,
        regions: Sequence[str],
        grace_ms: int,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        is_draining: Callable[[], bool] = lambda: False,
        is_lobby_draining: Callable[[bytes], bool] = lambda lobby: False,
    ) -> None:
        """While `is_draining` returns True, no group gets idle lobbies.

        A lobby for which `is_lobby_draining` returns True is stopped when it is idle.
        """
        self._wall_ms = wall_ms
        self._is_draining = is_draining
        self._is_lobby_draining = is_lobby_draining
        self._source = source
        self._processes = source.processes
        self._namespaces = namespaces
        self._lobby_templates = lobby_templates
        self._regions = regions
        self._grace_ms = grace_ms
        self._backoff = CrashBackoff(_now_s)
        self._due: dict[GroupKey, float] = {}

    def namespace_changed(self, namespace_id: bytes) -> None:
        now_s = _now_s()
        for group in self._processes.idle_lobby_groups(namespace_id):
            self._due[_key(group)] = now_s
        if not self._namespaces.is_known(namespace_id):
            return
        namespace = self._namespaces.resolved(namespace_id)
        for mode in namespace.modes.values():
            for region in mode.regions or self._regions:
                if mode.settings_in(region).idle_min > 0:
                    key = (namespace_id, namespace.version_id, mode.name, region)
                    self._due[key] = now_s

    def all_changed(self) -> None:
        for namespace in self._namespaces:
            self.namespace_changed(raw_id(namespace.namespace_id))
        for namespace_id in self._namespaces.removed_ids():
            self.namespace_changed(namespace_id)

    def lobby_crashed(self, lobby: Lobby) -> None:
        if lobby.is_trial:
            return
        key = (lobby.namespace, lobby.version, lobby.mode, lobby.region)
        self._backoff.record(key)
        self._schedule(key, self._backoff.remaining_s(key))

    def _schedule(self, key: GroupKey, wait_s: float) -> None:
        check_s = _now_s() + wait_s
        self._due[key] = min(check_s, self._due.get(key, check_s))

    async def run(self) -> None:
        """Scales lobbies until it is cancelled. Retries failed commands."""
        self.all_changed()
        while True:
            if await self.step():
                await asyncio.sleep(_STEP_INTERVAL_S)
                continue
            next_s = min(self._due.values(), default=_now_s() + _POLL_INTERVAL_S)
            await self._source.wait_for_change(min(max(0.0, next_s - _now_s()), _POLL_INTERVAL_S))

    async def step(self) -> bool:
        """Applies the plans of all groups that changed or are due. Returns False if there were none."""
        touched = self._processes.take_touched()
        for group_state in touched:
            self._backoff.record(_key(group_state), group_state.failed)
        groups: dict[GroupKey, LobbyGroup] = {_key(group): group for group in touched}
        now_s = _now_s()
        due = [key for key, at_s in self._due.items() if at_s <= now_s and key not in groups]
        for key in due:
            groups[key] = self._group(key)
        for key in groups:
            self._due.pop(key, None)
        for key, group in groups.items():
            await self._apply_plan(key, group)
        return bool(groups)

    def _group(self, key: GroupKey) -> LobbyGroup:
        groups = self._processes.idle_lobby_groups(key[0])
        return next((group for group in groups if _key(group) == key), NoLobbyGroup())

    async def _apply_plan(self, key: GroupKey, group: LobbyGroup) -> None:
        namespace_id, version, mode_name, region = key
        mode, namespace = None, None
        if self._namespaces.is_known(namespace_id):
            namespace = self._namespaces.resolved(namespace_id)
            mode = namespace.modes.get(mode_name) if namespace.version_id == version else None
        is_known = region in self._regions and not self._is_draining()
        plan = plan_group(
            group,
            mode,
            region,
            self._grace_ms,
            is_region_known=is_known,
            is_draining=self._is_lobby_draining,
        )
        if plan.recheck_ms is not None:
            self._schedule(key, plan.recheck_ms / 1000)
        try:
            if self._namespaces.is_removed(namespace_id):
                await self.end_all(namespace_id)
                return
            if namespace is not None and mode is None and group.live:
                await self._drain(key, namespace)
            for empty_lobby in plan.stop:
                await self._stop(empty_lobby.lobby)
            if mode is not None and namespace is not None:
                await self._start(key, namespace, mode, plan.start)
        except ServiceError as error:
            # Lobbies, ports or disk are exhausted: retry later, and continue with other groups.
            _log.debug(
                "idle lobby scaling is delayed", game_mode=mode_name, region=region, code=error.code
            )
            self._schedule(key, _RETRY_S)

    async def _drain(self, key: GroupKey, namespace: ResolvedNamespace) -> None:
        _, version, mode, _ = key
        retired = namespace.retired.get(version)
        if retired is None:
            return
        left_ms = retired.drain_deadline_ms(mode) - self._wall_ms()
        if left_ms > 0:
            self._schedule(key, min(left_ms / 1000, _DRAIN_POLL_INTERVAL_S))
            return
        for lobby_id in self._processes.lobbies_of_version(namespace.namespace_id, version):
            lobby = self._source.lobby(lobby_id)
            # A trial ends at its own deadline.
            if lobby is None or lobby.is_trial or key != _key(lobby):
                continue
            if lobby.is_ours:
                await self._stop(lobby_id, only_if_idle=False)
            else:
                await self._end_attached(lobby)

    async def end_all(self, namespace_id: bytes) -> None:
        """Ends all lobbies of a removed namespace at once. Their player tokens become invalid."""
        for version in self._source.live_versions(namespace_id):
            for lobby_id in self._processes.lobbies_of_version(namespace_id, version):
                with _ignore_ended_lobby():
                    await self._source.detach([namespace_id], lobby_id, None)

    async def _stop(self, lobby: bytes, *, only_if_idle: bool = True) -> None:
        with _ignore_ended_lobby():
            await self._processes.stop(lobby, only_if_idle=only_if_idle)

    async def _end_attached(self, lobby: Lobby) -> None:
        with _ignore_ended_lobby():
            await self._source.detach([lobby.namespace], lobby.id, None)

    async def _start(
        self, key: GroupKey, namespace: ResolvedNamespace, mode: ResolvedMode, count: int
    ) -> None:
        remaining_s = self._backoff.remaining_s(key)
        if count and remaining_s > 0:
            self._schedule(key, remaining_s)
            return
        for _ in range(count):
            template = self._lobby_templates.for_idle(namespace, mode, key[3])
            if template is None:
                self._schedule(key, _RETRY_S)
                return
            await self._processes.start_idle(namespace.namespace_id, namespace.version_id, template)


@contextlib.contextmanager
def _ignore_ended_lobby() -> Iterator[None]:
    try:
        yield
    except ServiceError as error:
        if error.code not in ("MATCHMAKER_LOBBY_NOT_FOUND", "MATCHMAKER_LOBBY_STOPPED"):
            raise


def _key(group: IdleLobbyGroup | Lobby) -> GroupKey:
    return group.namespace, group.version, group.mode, group.region


def _now_s() -> float:
    return asyncio.get_running_loop().time()
