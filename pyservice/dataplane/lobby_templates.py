from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyservice.dataplane.engine_commands import PortRequest
from pyservice.dataplane.lobby_quota import UNLIMITED, LobbyQuota, LobbyQuotaUse
from pyservice.dataplane.lobby_resources import NO_RESOURCES, Resources
from pyservice.dataplane.native import LobbyTemplate
from pyservice.dataplane.resolved_namespace import ModePort, ResolvedMode, ResolvedNamespace
from pyservice.dataplane.runtime_connection import RuntimeConnection
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger

_log = get_logger("matchmaker")
_LOG_INTERVAL_S: Final = 60.0
_CACHED_MAX: Final = 10_000
_BY_HOST: Final = frozenset({"http", "https"})


@dataclass(frozen=True, slots=True)
class CreateTarget:
    """Game mode, region and publicity of the lobby that a create starts."""

    mode: ResolvedMode
    region: str
    publicity: str


@dataclass(frozen=True, slots=True)
class LobbyOverrides:
    tags: Mapping[str, str] = field(default_factory=dict)
    max_players: int | None = None
    publicity: str = "public"
    lobby_config: bytes | None = None


_NO_RUNTIME: Final = "No game server can start: the control plane does not run. Try again later."
_CAPACITY: Final = (
    "No lobby has enough free slots, and the machine has no capacity for another lobby: tier {tier} needs"
    " {tier_cpu_millicores} millicores and {tier_memory_mb} MB, and {free_cpu_millicores} millicores and"
    " {free_memory_mb} MB are free. Try again later, or set a smaller tier."
)


class CapacityRefusals:
    """Counts the finds and creates that failed for lack of capacity, by tier. Logs one of them for
    each tier and minute.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._next_log_s: dict[str, float] = {}
        self.by_tier: Counter[str] = Counter()

    def set_tiers(self, tiers: Iterable[str]) -> None:
        """Counts each tier from zero, so that a first refusal is visible as an increase."""
        for tier in tiers:
            self.by_tier.setdefault(tier, 0)

    def record(self, shortage: Mapping[str, str]) -> None:
        tier, now_s = shortage["tier"], self._monotonic_s()
        self.by_tier[tier] += 1
        if now_s >= self._next_log_s.get(tier, now_s):
            self._next_log_s[tier] = now_s + _LOG_INTERVAL_S
            _log.warning("no capacity for another lobby", refusals=self.by_tier[tier], **shortage)


def _tier_size(shortage: Mapping[str, str]) -> tuple[int, int]:
    return int(shortage.get("tier_cpu_millicores", 0)), int(shortage.get("tier_memory_mb", 0))


class LobbyTemplates:
    def __init__(
        self,
        can_start: Callable[[str], bool],
        *,
        has_job_domain: bool,
        heartbeat_grace_ms: int,
        availability: RuntimeConnection | None = None,
        quota: LobbyQuota | None = None,
        prevented: Callable[[ResolvedMode], ServiceError | None] = lambda _: None,
    ) -> None:
        """`prevented` returns the error if no lobby of a mode may start, whatever the capacity is."""
        self._prevented = prevented
        self._quota = quota
        self._can_start = can_start
        self._availability = availability
        self._has_job_domain = has_job_domain
        self._heartbeat_grace_ms = heartbeat_grace_ms
        self.capacity_refusals = CapacityRefusals()
        self._defaults: dict[tuple[bytes, str, str], tuple[ResolvedNamespace, LobbyTemplate]] = {}

    def quota_refusal(self, namespace: ResolvedNamespace) -> ServiceError | None:
        """Returns QUOTA_EXCEEDED if the namespace's group may have no further attached lobby."""
        return self._quota_use(namespace).refusal()

    def _quota_use(self, namespace: ResolvedNamespace) -> LobbyQuotaUse:
        return UNLIMITED if self._quota is None else self._quota.use_of_group(namespace)

    def _size(self, mode: ResolvedMode, region: str) -> Resources:
        if self._availability is None or mode.runtime.image_id is None:
            return NO_RESOURCES
        return self._availability.size_of_tier(mode.settings_in(region).tier)

    def start_refusal(
        self, error: ServiceError, modes: Iterable[ResolvedMode], regions: Sequence[str]
    ) -> ServiceError:
        """Returns `error` with the reason why no lobby of these modes can start. Counts the refusal
        if the reason is the capacity.
        """
        startable = [
            (mode, region)
            for mode in modes
            if mode.runtime.image_id is not None
            for region in regions
            if mode.allows_region(region)
        ]
        if not startable:
            return ServiceError(error.code, metadata={"reason": "no_build"})
        problems = [self._prevented(mode) for mode, _ in startable]
        tiers = [
            mode.settings_in(region).tier
            for (mode, region), problem in zip(startable, problems, strict=True)
            if problem is None
        ]
        if not tiers and problems[0] is not None:
            return problems[0]
        if self._availability is None:
            return error
        # Another tier may have room again since the refusal. So the smallest tier is named.
        metadata = min(map(self._availability.shortage, tiers), key=_tier_size)
        if metadata["reason"] != "capacity":
            return ServiceError(error.code, _NO_RUNTIME, metadata=metadata)
        self.capacity_refusals.record(metadata)
        return ServiceError(error.code, _CAPACITY.format_map(metadata), metadata=metadata)

    async def wait_for_runtime(self, modes: Iterable[ResolvedMode]) -> bool:
        """Waits until a runtime connects, at most until three seconds after the service start.

        Returns True after a wait, and False if no wait was necessary, for example because no mode
        needs a runtime.
        """
        if self._availability is None or self._availability.is_known:
            return False
        if all(mode.runtime.image_id is None for mode in modes):
            return False
        await self._availability.wait_until_known()
        return True

    def for_find(
        self,
        namespace: ResolvedNamespace,
        modes: Sequence[str],
        regions: Sequence[str],
        overrides: LobbyOverrides,
    ) -> LobbyTemplate | int:
        """Returns a template for the first region and mode that can start a lobby.

        Tries all modes in one region before the next region. If no lobby can start, returns
        `lobby_count_max`, which the engine needs to choose its error. Raises QUOTA_EXCEEDED if the
        quotas of the group allow no mode in any region.
        """
        use = self._quota_use(namespace)
        refusal, is_any_allowed = use.refusal(), False
        for region in regions:
            for name in modes:
                mode = namespace.modes[name]
                if mode.runtime.image_id is None or not mode.allows_region(region):
                    continue
                mode_refusal = use.refusal(self._size(mode, region))
                if mode_refusal is not None:
                    refusal = refusal or mode_refusal
                    continue
                is_any_allowed = True
                if self._can_start_mode(mode, region):
                    return self._template(namespace, mode, region, overrides)
        if refusal is not None and not is_any_allowed:
            raise refusal
        return namespace.lobby_count_max

    def for_create(
        self, namespace: ResolvedNamespace, target: CreateTarget, overrides: LobbyOverrides
    ) -> LobbyTemplate | int:
        """Returns a template, or `lobby_count_max` if the lobby cannot start.

        Raises QUOTA_EXCEEDED if the quotas of the group do not allow the lobby.
        """
        refusal = self._quota_use(namespace).refusal(self._size(target.mode, target.region))
        if refusal is not None:
            raise refusal
        if not self._can_start_mode(target.mode, target.region):
            return namespace.lobby_count_max
        return self._template(namespace, target.mode, target.region, overrides)

    def for_idle(
        self, namespace: ResolvedNamespace, mode: ResolvedMode, region: str
    ) -> LobbyTemplate | None:
        """Returns a template for a new idle lobby, or None if no lobby can start now."""
        refusal = self._quota_use(namespace).refusal(self._size(mode, region))
        if refusal is not None or not self._can_start_mode(mode, region):
            return None
        return self._template(namespace, mode, region, LobbyOverrides())

    def for_trial(
        self, namespace: ResolvedNamespace, mode: ResolvedMode, region: str, trial_ms: int
    ) -> LobbyTemplate:
        """Returns a template for a trial that ends after `trial_ms`.

        Raises QUOTA_EXCEEDED, and CAPACITY_EXHAUSTED with the reason.
        """
        refusal = self._quota_use(namespace).refusal(self._size(mode, region))
        if refusal is not None:
            raise refusal
        if not self._can_start_mode(mode, region):
            raise self.start_refusal(ServiceError("CAPACITY_EXHAUSTED"), [mode], [region])
        return self._build(namespace, mode, region, LobbyOverrides(), trial_ms)

    def _can_start_mode(self, mode: ResolvedMode, region: str) -> bool:
        return (
            mode.runtime.image_id is not None
            and self._prevented(mode) is None
            and self._can_start(mode.settings_in(region).tier)
        )

    def _template(
        self,
        namespace: ResolvedNamespace,
        mode: ResolvedMode,
        region: str,
        overrides: LobbyOverrides,
    ) -> LobbyTemplate:
        if overrides.tags or overrides != LobbyOverrides(overrides.tags):
            return self._build(namespace, mode, region, overrides)
        key = namespace.namespace_id, mode.name, region
        cached = self._defaults.get(key)
        if cached is None or cached[0] is not namespace:
            if len(self._defaults) >= _CACHED_MAX:
                self._defaults.clear()
            cached = self._defaults[key] = (
                namespace,
                self._build(namespace, mode, region, overrides),
            )
        return cached[1]

    def _build(
        self,
        namespace: ResolvedNamespace,
        mode: ResolvedMode,
        region: str,
        overrides: LobbyOverrides,
        trial_ms: int | None = None,
    ) -> LobbyTemplate:
        limits = (mode.max_players, mode.max_players_direct, mode.max_players_party)
        if overrides.max_players is not None:
            limits = (overrides.max_players,) * 3
        grace_ms = mode.heartbeat_grace_ms
        return LobbyTemplate(
            mode.name,
            region,
            [self._port(name, port, mode) for name, port in sorted(mode.ports.items())],
            tags=sorted(overrides.tags.items()),
            max_players=limits,
            player_token_ttl_ms=mode.player_token_ttl_ms,
            heartbeat_timeout_ms=mode.heartbeat_timeout_ms or 0,
            heartbeat_grace_ms=self._heartbeat_grace_ms if grace_ms is None else grace_ms,
            is_join_enabled=mode.is_join_enabled,
            is_public=overrides.publicity == "public",
            lobby_config=overrides.lobby_config,
            lobby_count_max=namespace.lobby_count_max,
            trial_ms=trial_ms,
        )

    def _port(self, name: str, port: ModePort, mode: ResolvedMode) -> PortRequest:
        if port.port_range is not None:
            return name, port.protocol, "range", *port.port_range, False, "uncounted"
        is_by_host = self._has_job_domain and port.protocol in _BY_HOST
        exposure = "host" if is_by_host else "number"
        is_counted = mode.adapter is not None and mode.adapter.counted_port == name
        counting = mode.adapter.counting if mode.adapter and is_counted else "uncounted"
        return name, port.protocol, exposure, 0, 0, port.sends_proxy_header, counting
