"""The supply of lobbies (decisions 5.8): idle ones are kept between the bounds of their mode and region, those that are
empty past the grace and those of former versions are stopped. Attached ones are ended when the time of their version
is over, and else by whoever attached them.

Driven by what the engine says has changed, and by its own timers: when a grace ends, when a pause after a crash is
over. Of lobbies that the engine itself ends (never ready, never heard of again) it tells with their group; of processes
that end, whoever hears of them. Nothing here is remembered over a restart: what is to be done follows from what is
there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pyservice.dataplane.configuration import ResolvedMode, ResolvedNamespace, raw_id
from pyservice.dataplane.making import Making
from pyservice.dataplane.native import Lobby, SupplyGroup
from pyservice.dataplane.servers import Servers
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1.configuration_pb2 import NamespaceConfiguration

PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""After so many lobbies of a group in a row that ended by themselves and not well."""

_AGAIN_S: Final = 1.0
_DRAIN_LOOK_S: Final = 60.0
"""So often the wall clock is looked at while lobbies drain: it may be set."""
_LOOK_S: Final = 0.25

_log = get_logger("supply")

Key = tuple[bytes, bytes, str, str]
"""Namespace, version, mode, region."""


class Source(Protocol):
    """The engine, as far as it is asked here."""

    @property
    def servers(self) -> Servers: ...
    def lobby(self, lobby: bytes) -> Lobby | None: ...
    async def detach(
        self, namespaces: Sequence[bytes], lobby: bytes, deadline: float | None
    ) -> bool: ...
    async def progressed(self, at_most_s: float) -> None: ...


class Held(Protocol):
    """The namespaces that are held."""

    def __iter__(self) -> Iterator[NamespaceConfiguration]: ...
    def is_known(self, namespace_id: bytes) -> bool: ...
    def resolved(self, namespace_id: bytes) -> ResolvedNamespace: ...


class Empty(Protocol):
    """A lobby without players."""

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


class Group(Protocol):
    """Lobbies of one namespace, version, mode and region."""

    @property
    def starting(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def empty(self) -> Sequence[Empty]: ...


@dataclass(frozen=True, slots=True)
class Nothing:
    """A group in which there is no lobby."""

    starting: int = 0
    live: int = 0
    empty: Sequence[Empty] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about a group now, and when to look again without news."""

    start: int = 0
    stop: tuple[Empty, ...] = ()
    look_ms: int | None = None


def plan(
    group: Group,
    mode: ResolvedMode | None,
    region: str,
    grace_ms: int,
    *,
    is_region_there: bool = True,
) -> Plan:
    """Decides. `mode` None: the version is not the current one, or has no such mode. Nobody is led to a region that the
    operator took away: no idle lobby is kept there.
    """
    ours = [one for one in group.empty if one.is_ours]
    if mode is None:
        # They drain: whoever is empty goes. A grace would keep a lobby for newcomers, and there are none.
        return Plan(stop=tuple(ours))
    place = mode.place(region)
    idle = [one for one in group.empty if one.is_findable and _is_idle(one, grace_ms)]
    shut = [one for one in ours if not one.is_findable and _is_idle(one, grace_ms)]
    is_wanted = is_region_there and mode.allows_region(region)
    low, high = (place.idle_min, place.idle_max) if is_wanted else (0, 0)
    surplus = [one for one in idle if one.is_ours][: max(0, len(idle) - high)]
    waiting = [one for one in ours if not _is_idle(one, grace_ms)]
    pending = [grace_ms - one.empty_ms for one in waiting]
    # Closed ones that nobody was in yet load their map, or the like: with others in their place there would be more and
    # more of them.
    loading = sum(not one.was_used for one in waiting)
    missing = low - len(idle) - group.starting - loading
    return Plan(max(0, missing), (*shut, *surplus), min(pending, default=None))


def _is_idle(one: Empty, grace_ms: int) -> bool:
    """One that was never used need not wait for its players to come back. But when it is closed, it may open yet."""
    return one.empty_ms >= grace_ms or (one.is_findable and not one.was_used)


class Pauses:
    """How long a group whose lobbies end by themselves and not well is left alone."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._ends: dict[Key, tuple[int, float]] = {}

    def note(self, key: Key, ended: int = 1) -> None:
        """So many more lobbies of the group ended so."""
        if not ended:
            return
        now_s = self._now_s()
        self._forget_old(now_s)
        count = self._ends.get(key, (0, 0.0))[0] + ended
        pause_s = PAUSES_S[min(count, len(PAUSES_S)) - 1]
        self._ends[key] = (count, now_s + pause_s)

    def left_s(self, key: Key) -> float:
        """How long nothing is to be started there."""
        _, until_s = self._ends.get(key, (0, 0.0))
        return max(0.0, until_s - self._now_s())

    def _forget_old(self, now_s: float) -> None:
        """Who was well for as long as the longest pause begins again with the shortest. Where groups come, so that
        there are never more than those of the last minutes.
        """
        over = [key for key, (_, until_s) in self._ends.items() if now_s - until_s > PAUSES_S[-1]]
        for key in over:
            del self._ends[key]


class Supply:
    """Keeps groups as their plans say, as long as `run` runs."""

    def __init__(
        self,
        source: Source,
        namespaces: Held,
        making: Making,
        regions: Sequence[str],
        grace_ms: int,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`regions`: all of the operator's, for modes that name none."""
        self._wall_ms = wall_ms
        self._source = source
        self._servers = source.servers
        self._namespaces = namespaces
        self._making = making
        self._regions = regions
        self._grace_ms = grace_ms
        self._pauses = Pauses(_now_s)
        self._looks: dict[Key, float] = {}
        """When to look at a group without news."""

    def changed(self, namespace_id: bytes) -> None:
        """Another version, or other bounds, may be in force: every group of the namespace is looked at."""
        now_s = _now_s()
        for group in self._servers.supply_groups(namespace_id):
            self._looks[_key(group)] = now_s
        if not self._namespaces.is_known(namespace_id):
            return
        namespace = self._namespaces.resolved(namespace_id)
        for mode in namespace.modes.values():
            for region in mode.regions or self._regions:
                if mode.place(region).idle_min > 0:
                    key = (namespace_id, namespace.version_id, mode.name, region)
                    self._looks[key] = now_s

    def crashed(self, lobby: Lobby) -> None:
        """A lobby ended by itself and not well: the next one of its group waits a little."""
        key = (lobby.namespace, lobby.version, lobby.mode, lobby.region)
        self._pauses.note(key)
        self._look_in(key, self._pauses.left_s(key))

    def _look_in(self, key: Key, wait_s: float) -> None:
        """What is due of the group before is not put off by it."""
        look_s = _now_s() + wait_s
        self._looks[key] = min(look_s, self._looks.get(key, look_s))

    async def run(self) -> None:
        """Until cancelled. What cannot be done now is tried again."""
        for namespace in self._namespaces:
            self.changed(raw_id(namespace.namespace_id))
        while True:
            await self.step()
            next_s = min(self._looks.values(), default=_now_s() + _LOOK_S)
            await self._source.progressed(min(max(0.0, next_s - _now_s()), _LOOK_S))

    async def step(self) -> None:
        """Looks at every group that changed, or whose time has come."""
        touched = self._servers.take_touched()
        for changed in touched:
            # As after a crash: the next one waits a little.
            self._pauses.note(_key(changed), changed.failed)
        groups: dict[Key, Group] = {_key(group): group for group in touched}
        now_s = _now_s()
        due = [key for key, at_s in self._looks.items() if at_s <= now_s and key not in groups]
        for key in due:
            groups[key] = self._group(key)
        for key in groups:
            # When each has to be looked at again is worked out anew.
            self._looks.pop(key, None)
        for key, group in groups.items():
            await self._keep(key, group)

    def _group(self, key: Key) -> Group:
        groups = self._servers.supply_groups(key[0])
        return next((group for group in groups if _key(group) == key), Nothing())

    async def _keep(self, key: Key, group: Group) -> None:
        namespace_id, version, mode_name, region = key
        mode, namespace = None, None
        if self._namespaces.is_known(namespace_id):
            namespace = self._namespaces.resolved(namespace_id)
            mode = namespace.modes.get(mode_name) if namespace.version_id == version else None
        is_there = region in self._regions
        todo = plan(group, mode, region, self._grace_ms, is_region_there=is_there)
        if todo.look_ms is not None:
            self._look_in(key, todo.look_ms / 1000)
        try:
            if namespace is not None and mode is None and group.live:
                await self._drain(key, namespace)
            for one in todo.stop:
                await self._stop(one.lobby)
            if mode is not None and namespace is not None:
                await self._start(key, namespace, mode, todo.start)
        except ServiceError as error:
            # Full, of lobbies, ports or disk: others may go on, and this is tried again.
            _log.debug("supply is put off", game_mode=mode_name, region=region, code=error.code)
            self._look_in(key, _AGAIN_S)

    async def _drain(self, key: Key, namespace: ResolvedNamespace) -> None:
        """Lobbies of a former version go on for so long and no longer, whoever is in them."""
        _, version, mode, _ = key
        retired = namespace.retired.get(version)
        if retired is None:
            return
        left_ms = retired.drained_ms(mode) - self._wall_ms()
        if left_ms > 0:
            self._look_in(key, min(left_ms / 1000, _DRAIN_LOOK_S))
            return
        for lobby_id in self._servers.lobbies_of_version(namespace.namespace_id, version):
            lobby = self._source.lobby(lobby_id)
            if lobby is None or key != _key(lobby):
                continue
            if lobby.is_ours:
                await self._stop(lobby_id, only_if_idle=False)
            else:
                await self._end_attached(lobby)

    async def _stop(self, lobby: bytes, *, only_if_idle: bool = True) -> None:
        with _unless_it_is_over():
            await self._servers.stop(lobby, only_if_idle=only_if_idle)

    async def _end_attached(self, lobby: Lobby) -> None:
        """Over at once: nobody here has a process to tell, and its server hears of it with its next call."""
        with _unless_it_is_over():
            await self._source.detach([lobby.namespace], lobby.id, None)

    async def _start(
        self, key: Key, namespace: ResolvedNamespace, mode: ResolvedMode, count: int
    ) -> None:
        left_s = self._pauses.left_s(key)
        if count and left_s > 0:
            self._look_in(key, left_s)
            return
        for _ in range(count):
            make = self._making.idle(namespace, mode, key[3])
            if make is None:
                # Nobody who would start it is there.
                self._look_in(key, _AGAIN_S)
                return
            await self._servers.start_idle(namespace.namespace_id, namespace.version_id, make)


@contextlib.contextmanager
def _unless_it_is_over() -> Iterator[None]:
    try:
        yield
    except ServiceError as error:
        if error.code not in ("MATCHMAKER_LOBBY_NOT_FOUND", "MATCHMAKER_LOBBY_STOPPED"):
            raise


def _key(group: SupplyGroup | Lobby) -> Key:
    return group.namespace, group.version, group.mode, group.region


def _now_s() -> float:
    return asyncio.get_running_loop().time()
