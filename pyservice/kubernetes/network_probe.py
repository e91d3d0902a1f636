"""Probe of the NetworkPolicies: a Pod like that of a game server tries what must be refused.

Not every cluster has a network plugin that enforces NetworkPolicies, and the API server accepts them
in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NoReturn
from urllib.parse import urlsplit

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.kubernetes.api import ApiError, KubernetesApi, Object, pods_of
from pyservice.kubernetes.connection_trial import ConnectionTrial, TrialReport
from pyservice.kubernetes.pod_manifest import NETWORK, PROBE, PodTemplate, probe_manifest
from pyservice.kubernetes.pod_status import PodState, pod_state
from pyservice.kubernetes.watched_objects import WatchedObjects
from pyservice.network.connection_attempt import accepts_connections
from pyservice.observability.logging import get_logger
from pyservice.runtime.network_isolation import Egress
from pyservice.runtime.shared_network import NETWORK_NOT_ISOLATED
from pyservice.settings import ListenAddress

NetworkState = Literal["enforced", "not_enforced", "unknown"]
NETWORK_STATES: Final[tuple[NetworkState, ...]] = ("enforced", "not_enforced", "unknown")

PROBE_TIMEOUT_S: Final = 180.0
"""Time of one probe, with the image that a node may have to pull."""
ENFORCED_S: Final = 86_400.0
"""Time after which a good result is checked again."""
_REPEATS_S: Final = doubling(10.0, 3_600.0)
LISTEN_TIMEOUT_S: Final = 30.0
_LISTEN_PAUSE_S: Final = 0.2
_NAME_PAUSE_S: Final = 1.0
_METADATA: Final = "169.254.169.254:80"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_UNKNOWN: Final = "it is not known whether the cluster enforces its NetworkPolicies"
_FIRST: Final = f"{_UNKNOWN}: the first probe has not ended"
_NO_ADDRESS: Final = (
    f"{_UNKNOWN}: set kubernetes.pod_address to the address of the service's Pod, so that a probe "
    "can try it"
)

_log = get_logger("kubernetes")


@dataclass(frozen=True, slots=True)
class NetworkResult:
    state: NetworkState
    problem: str = ""
    """Sentence for the operator about a network that is not isolated, or not known to be."""


@dataclass(frozen=True, slots=True)
class ProbeTargets:
    """Addresses as `host:port`."""

    allowed: str
    own: str
    """Address of this service that game servers must not reach. The probe needs its answer."""
    others: tuple[str, ...] = ()
    """Further addresses that game servers must not reach. The probe omits addresses without an answer."""


def probe_targets(
    pod_address: str, metrics_port: int, lobby_api_url: str, cluster_url: str, egress: Egress
) -> ProbeTargets:
    """Returns the targets of a service. With `egress` `any`, private networks are allowed."""
    api_server = _address(cluster_url)
    is_refused = egress != "any" and _is_private(urlsplit(cluster_url).hostname or "")
    own = str(ListenAddress(pod_address, metrics_port))
    others = (api_server, _METADATA) if is_refused else (_METADATA,)
    return ProbeTargets(_address(lobby_api_url), own, others)


def _address(url: str) -> str:
    parts = urlsplit(url)
    return str(ListenAddress(parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]))


def _is_private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False


class NetworkProbe:
    def __init__(
        self,
        api: KubernetesApi,
        template: Callable[[], PodTemplate],
        targets: ProbeTargets | None,
    ) -> None:
        """Without targets, the result stays unknown."""
        self.result = NetworkResult("unknown", _NO_ADDRESS if targets is None else _FIRST)
        self.on_change: Callable[[], None] = lambda: None
        self._api = api
        self._template = template
        self._targets = targets
        self._has_result = asyncio.Event()

    @property
    def is_enforced(self) -> bool:
        return self.result.state == "enforced"

    async def wait_for_first(self) -> None:
        """Waits until the first probe since the start of this control plane has ended."""
        await self._has_result.wait()

    async def run(self) -> NoReturn:
        """Probes the cluster now and then, until it is cancelled."""
        backoff = Backoff(_REPEATS_S)
        while True:
            if self._targets is not None:
                self._take(await self._probe(self._targets))
            elif not self._has_result.is_set():
                _log.warning("network of game servers is not isolated", problem=self.result.problem)
            self._has_result.set()
            if self.is_enforced:
                backoff.reset()
            await asyncio.sleep(ENFORCED_S if self.is_enforced else backoff.next_s())

    def _take(self, found: NetworkResult) -> None:
        if found.state == "unknown" and self.result.state != "unknown":
            # A full cluster does not change the network.
            _log.warning("NetworkPolicies were not probed again", problem=found.problem)
            return
        has_changed, self.result = found != self.result, found
        if not has_changed:
            return
        if found.state == "enforced":
            _log.info("cluster enforces its NetworkPolicies", problem=found.problem or None)
        else:
            _log.warning("network of game servers is not isolated", problem=found.problem)
        self.on_change()

    async def _probe(self, targets: ProbeTargets) -> NetworkResult:
        try:
            await _require_answer(targets.own)
            others = [one for one in targets.others if await accepts_connections(one)]
            trial = ConnectionTrial(targets.allowed, (targets.own, *others))
            report = await self._run_pod(trial)
            # Else its silence in the Pod proves nothing.
            if not report.reached:
                await _require_answer(targets.own)
        except (_ProbeFailed, ApiError) as error:
            return NetworkResult("unknown", f"{_UNKNOWN}: {error}")
        return judge(trial, report)

    async def _run_pod(self, trial: ConnectionTrial) -> TrialReport:
        """Runs the probe Pod, and deletes it. Raises ApiError, _ProbeFailed."""
        manifest = probe_manifest(trial, self._template())
        pod: _ProbePod | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                created = await self._create(manifest)
                pod = _ProbePod(created["metadata"]["uid"])
                await self._follow(pod)
        if pod is None:
            raise _ProbeFailed("an earlier probe Pod does not end")
        await self._delete(manifest["metadata"]["name"], pod.uid)
        return pod.report()

    async def _follow(self, pod: _ProbePod) -> None:
        template = self._template()
        pods, selector = pods_of(template.settings.namespace), f"{PROBE}={NETWORK}"
        watched = WatchedObjects(self._api, pods, pod, f"{template.selector},{selector}")
        following = asyncio.create_task(watched.run())
        try:
            await pod.has_ended.wait()
        finally:
            await cancel_and_wait(following)

    async def _create(self, manifest: Object) -> Object:
        """Creates the Pod, in place of one that an earlier control plane has left."""
        pods = pods_of(manifest["metadata"]["namespace"])
        while True:
            try:
                return await self._api.create(pods, manifest)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
            with contextlib.suppress(ApiError):
                left = await self._api.get(pods, manifest["metadata"]["name"])
                await self._delete(left["metadata"]["name"], left["metadata"]["uid"])
            await asyncio.sleep(_NAME_PAUSE_S)

    async def _delete(self, name: str, uid: str) -> None:
        # One that is left ends by itself, and the next probe deletes it.
        with contextlib.suppress(ApiError):
            await self._api.delete(pods_of(self._template().settings.namespace), name, uid=uid)


class _ProbeFailed(Exception):
    """The probe has no result. The message is a sentence for the operator."""


class _ProbePod:
    """Observes one Pod until it ends or is gone."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.state = PodState(uid)
        self.has_ended = asyncio.Event()

    def observe(self, found: Object) -> None:
        state = pod_state(found)
        if state.uid == self.uid:
            self.state = state
            if state.end is not None:
                self.has_ended.set()

    def observe_gone(self, name: str, uid: str, last: Object | None) -> None:
        if uid == self.uid:
            self.has_ended.set()

    def report(self) -> TrialReport:
        """Raises _ProbeFailed."""
        end, words = self.state.end, "\n".join(self.state.last_lines)
        if end is None:
            unended = "was deleted" if self.has_ended.is_set() else "did not end in time"
            raise _ProbeFailed(self.state.problem or f"the probe Pod {unended}")
        if end.exit_code != 0:
            raise _ProbeFailed(f"the probe Pod failed: {end.message or words or end.reason}")
        try:
            return TrialReport.decode(words)
        except (KeyError, TypeError, ValueError):
            raise _ProbeFailed(f"the probe Pod has no report, but: {words}") from None


def judge(trial: ConnectionTrial, report: TrialReport) -> NetworkResult:
    if report.reached:
        reached = " and ".join(report.reached)
        return NetworkResult(
            "not_enforced",
            f"{NETWORK_NOT_ISOLATED}: a Pod like theirs reaches {reached}, so use a network plugin that "
            "enforces NetworkPolicies, and refuse these addresses in them",
        )
    if not report.reaches_allowed:
        return NetworkResult(
            "unknown",
            f"{_UNKNOWN}: a Pod like those of game servers does not reach the API at {trial.allowed}, "
            "so correct lobby_api_url, or allow it in the NetworkPolicies",
        )
    if report.open_ms:
        opened_s = f"{report.open_ms / 1_000:.1f} s"
        return NetworkResult(
            "enforced", f"the network of a new Pod is isolated only {opened_s} after its start"
        )
    return NetworkResult("enforced")


async def _require_answer(address: str) -> None:
    """Waits for an answer, because a service that starts listens a little later. Raises _ProbeFailed."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + LISTEN_TIMEOUT_S
    while not await accepts_connections(address):
        if loop.time() >= until_s:
            sentence = "does not answer this service: let metrics listen on the address of its Pod"
            raise _ProbeFailed(f"{address} {sentence}")
        await asyncio.sleep(_LISTEN_PAUSE_S)
