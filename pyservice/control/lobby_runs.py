"""Lobbies of the data plane as processes: what it wants is run, what becomes of it is told (decisions 5.8, 5.10).

The data plane decides which lobbies there are; this asks for them by long poll and says with it what this node can run,
so that lobbies are made only while somebody is there to start them. Asking again changes nothing: after a crash of
either side the complete set puts right what differs. A lobby that cannot be taken now is tried again, the others go on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.control.feeder import DataPlaneUnavailable
from pyservice.control.retrying_job import RetryingJob
from pyservice.control.timestamps import now_ms
from pyservice.pb.hosting.internal.v1 import runtime_pb2 as pb
from pyservice.runtime.orders import Backend, End, Order, Owner, PortOrder, Resources, Unheard
from pyservice.storage import lobby_runs
from pyservice.storage.conflicts import again_on_conflict
from pyservice.storage.database import Database

WAIT_MS: Final = 10_000
_RETRY_INTERVAL_MS: Final = 1_000
"""While a lobby is left that could not be taken, or it is not told where the doors are."""
_RETRIES_S: Final = (0.05, 0.5)


class RuntimeClient(Protocol):
    """The data plane, as whoever starts processes sees it. Raises Away, ServiceError."""

    async def wanted(self, request: pb.WantedRequest) -> pb.WantedResponse: ...
    async def report(self, report: pb.LobbyReport) -> None: ...


class RunSupervisor(Protocol):
    """The supervisor, as far as lobbies need it."""

    def want(self, order: Order) -> None: ...
    def end(self, run_id: str, kill_timeout_ms: int | None = None) -> bool: ...
    def refuse(self, run_id: str, end: End) -> bool: ...
    def is_known(self, run_id: str) -> bool: ...
    def ids(self, owner: Owner) -> list[str]: ...
    def only(self, owner: Owner, ids: Collection[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class TierSize:
    """What a lobby or server of a tier has."""

    resources: Resources
    cpu_mhz: int


class LobbyProcess(NamedTuple):
    """Of a lobby, as long as its end is not told."""

    tier: str
    start_ms: int | None
    """Since the Unix epoch; None: it has not begun."""


def api_variables(api_url: str, grpc_address: str) -> dict[str, str]:
    """How a game server reaches the service."""
    return {"HOSTING_API_URL": api_url, "HOSTING_GRPC_ADDRESS": grpc_address}


def size_variables(size: TierSize) -> dict[str, str]:
    """What it may use."""
    return {
        "HOSTING_CPU": str(size.cpu_mhz),
        "HOSTING_MEMORY": str(size.resources.memory_mb),
    }


class LobbyRuns:
    """Follows the data plane as long as `run` runs; is told by the supervisor what became of lobbies."""

    def __init__(
        self,
        database: Database,
        client: RuntimeClient,
        tier: Callable[[str], TierSize | None],
        api_url: Callable[[str], str],
        capacity: Callable[[], pb.Capacity],
    ) -> None:
        """`tier`: the operator's of now, None for one that there is not (any more). `api_url`: of the public HTTP door,
        from where it listens.
        """
        self._database = database
        self._client = client
        self._tier = tier
        self._api_url = api_url
        self._capacity = capacity
        self.addresses = "", ""
        """Of the HTTP and gRPC doors, as host:port; empty: not told yet."""
        self.known = asyncio.Event()
        """The data plane has told what it wants, and so knows that somebody would run it."""
        self._run = ""
        self._sequence = 0
        self._room_changed = asyncio.Event()
        self._left: dict[str, pb.WantedLobby] = {}
        """Those that could not be taken, or are told later."""
        self._telling: dict[str, asyncio.Task[None]] = {}
        """Ends of lobbies that were never begun here."""
        self.job = RetryingJob(
            "lobbies", "lobbies not followed", DataPlaneUnavailable, Unheard, pauses_s=_RETRIES_S
        )

    async def run(self, runs: RunSupervisor) -> None:
        """Until cancelled."""
        try:
            await self.job.repeat_forever(lambda: self._step(runs))
        finally:
            await cancel_and_wait(*self._telling.values())

    async def _step(self, runs: RunSupervisor) -> None:
        answer = await self._ask()
        if answer.http_address or answer.run != self._run:
            self.addresses = answer.http_address, answer.grpc_address
        left = {} if answer.is_complete else self._left
        wanted = left | {lobby.lobby_id: lobby for lobby in answer.lobbies}
        for lobby_id in answer.gone:
            wanted.pop(lobby_id, None)
            runs.end(lobby_id)
        self._left = {}
        for lobby in wanted.values():
            self._try(lobby, runs)
        if answer.is_complete:
            runs.only("lobby", {lobby.lobby_id for lobby in answer.lobbies})
        self._run, self._sequence = answer.run, answer.sequence
        self.known.set()

    def capacity_changed(self) -> None:
        """Another part of the node is free: the data plane is told at once."""
        self._room_changed.set()

    async def _ask(self) -> pb.WantedResponse:
        """What is new; says what of the node is free. When that changes the question is dropped and another one is
        asked. An answer that was on its way is lost and comes again: what was not taken is still new.
        """
        wait_ms = _RETRY_INTERVAL_MS if self._left or not self.addresses[0] else WAIT_MS
        asking = asyncio.ensure_future(self._client.wanted(self._question(wait_ms)))
        changing = asyncio.ensure_future(self._room_changed.wait())
        try:
            await asyncio.wait({asking, changing}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        finally:
            await cancel_and_wait(asking, changing)
        # Waits for nothing, so it is not dropped: an answer comes however often the room changes.
        return await self._client.wanted(self._question(0))

    def _question(self, wait_ms: int) -> pb.WantedRequest:
        self._room_changed.clear()
        return pb.WantedRequest(
            run=self._run,
            after_sequence=self._sequence,
            unspecified=[lobby_id for lobby_id, lobby in self._left.items() if lobby.is_later],
            wait_ms=wait_ms,
            capacity=self._capacity(),
        )

    def _try(self, lobby: pb.WantedLobby, runs: RunSupervisor) -> None:
        if lobby.is_later:
            self._left[lobby.lobby_id] = lobby
            return
        try:
            self._take(lobby, runs)
        except Exception as error:  # noqa: BLE001 — whatever it is, the others are taken
            self.job.record_failure(error, id=lobby.lobby_id)
            self._left[lobby.lobby_id] = lobby

    def _take(self, lobby: pb.WantedLobby, runs: RunSupervisor) -> None:
        lobby_id, tier = lobby.lobby_id, lobby.spec.tier
        if lobby.is_stopping:
            is_known = runs.end(lobby_id)
        elif lobby.HasField("spec") and (size := self._tier(tier)) is not None:
            runs.want(self._order(lobby, size))
            is_known = True
        else:
            # Of one that has begun the size is known, whatever became of its tier.
            is_known = runs.refuse(lobby_id, _refusal_end(lobby))
        if not is_known:
            # Nobody has it: neither we nor anybody else will ever tell more of it.
            self._tell(lobby_id, lambda: self.over(lobby_id, _refusal_end(lobby), tier))

    def _tell(self, lobby_id: str, work: Callable[[], Awaitable[None]]) -> None:
        """Until it is heard; nobody waits for it."""
        if lobby_id not in self._telling:
            task = asyncio.create_task(self.job.retry_until_done(work, id=lobby_id))
            self._telling[lobby_id] = task
            task.add_done_callback(lambda _: self._telling.pop(lobby_id))

    def _order(self, lobby: pb.WantedLobby, size: TierSize) -> Order:
        spec = lobby.spec
        http_address, grpc_address = self.addresses
        if not http_address:
            raise DataPlaneUnavailable("the data plane has not told yet where its doors are")
        own_env = {
            **api_variables(self._api_url(http_address), grpc_address),
            **size_variables(size),
            "HOSTING_LOBBY_ID": lobby.lobby_id,
            "HOSTING_LOBBY_TOKEN": spec.lobby_token,
            "HOSTING_NAMESPACE_ID": lobby.namespace_id,
            "HOSTING_NAMESPACE_NAME": spec.namespace_name,
            "HOSTING_VERSION_ID": lobby.version_id,
            "HOSTING_GAME_MODE": spec.game_mode,
            "HOSTING_REGION_ID": spec.region,
            "HOSTING_MAX_PLAYERS": str(spec.max_players),
            "HOSTING_MAX_PLAYERS_DIRECT": str(spec.max_players_direct),
            "HOSTING_MAX_PLAYERS_PARTY": str(spec.max_players_party),
            "HOSTING_LOBBY_TAGS": json.dumps(dict(spec.tags), sort_keys=True),
        }
        if spec.lobby_config:
            own_env["HOSTING_LOBBY_CONFIG"] = spec.lobby_config.decode()
        return Order(
            lobby.lobby_id,
            "lobby",
            spec.game_id,
            spec.build_id,
            size.resources,
            spec.tier,
            args=tuple(spec.args),
            env=dict(spec.env),
            own_env=own_env,
            ports={name: _port(port) for name, port in spec.ports.items()},
        )

    # What the supervisor tells

    async def placed(self, run_id: str, backends: Mapping[str, Backend]) -> None:
        """Where its process listens: whoever says that it is ready is reached there."""
        placed = pb.Placed(
            backends={
                name: pb.Backend(address=address, port=port)
                for name, (address, port) in backends.items()
            }
        )
        await self._report(pb.LobbyReport(lobby_id=run_id, placed=placed))

    running: Final = None
    """A lobby tells itself when it is ready."""

    async def over(self, run_id: str, end: End, tier: str) -> None:
        """Its slots are freed, whoever waits for it is told; then it is written for its developer."""
        await self._over(run_id, end)

        run = lobby_runs.Run(tier, end.started_ms, now_ms(), end.reason, end.message, end.exit_code)

        async def write() -> None:
            async with self._database.write() as tx:
                await lobby_runs.note(tx, run_id, run)

        await again_on_conflict(write)

    async def _over(self, run_id: str, end: End) -> None:
        over = pb.Over(reason=end.reason, message=end.message, exit_code=end.exit_code)
        await self._report(pb.LobbyReport(lobby_id=run_id, over=over))

    async def _report(self, report: pb.LobbyReport) -> None:
        try:
            await self._client.report(report)
        except DataPlaneUnavailable as error:
            raise Unheard(str(error)) from None


def _refusal_end(lobby: pb.WantedLobby) -> End:
    """How one ends that nobody can order any more."""
    if not lobby.HasField("spec"):
        return End("lost", message="it runs nowhere")
    tier = lobby.spec.tier
    message = f"no tier {tier} is there any more: give the game mode another one"
    return End("tier_unknown", message=message)


def _port(port: pb.RuntimePort) -> PortOrder:
    span = (port.range_min, port.range_max) if port.range_min else None
    return PortOrder(port.protocol == "udp", span)
