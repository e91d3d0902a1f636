"""A matchmaker scene with a simulated runtime and edge-guard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from pyservice.dataplane.edge_routes import EdgeRoutes
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_quota import LobbyQuota
from pyservice.dataplane.lobby_resources import LobbyResources, Resources
from pyservice.dataplane.lobby_scaling import LobbyScaler
from pyservice.dataplane.lobby_templates import LobbyTemplates
from pyservice.dataplane.player_addresses import PlayerAddresses
from pyservice.dataplane.player_sessions import PlayerSessions
from pyservice.dataplane.resolved_namespace import TIER
from pyservice.dataplane.runtime_connection import RuntimeConnection
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import routes_pb2, runtime_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.settings.quotas import QuotaSettings
from tests.support.matchmaker_scene import MatchmakerScene
from tests.support.namespace_configurations import version
from tests.support.waiting import PATIENCE_S, eventually

BUILD_ID = "0192f000-0000-7000-8000-0000000000b1"
DOCKER: dict[str, Any] = {
    "image_id": BUILD_ID,
    "args": ["--map", "$(MAP)"],
    "env": {"MAP": "sea"},
    "ports": {"game": {"protocol": "udp"}, "web": {"protocol": "https"}},
}
MODES: dict[str, Any] = {
    "duel": {
        "max_players": 2,
        "taggable": True,
        "allow_dynamic_max_players": True,
        "actions": {"create": {"enabled": True, "enable_public": True}},
        "docker": DOCKER,
    },
    "private": {"actions": {"create": {"enabled": True}}, "docker": DOCKER},
    "attached": {"docker": {"ports": {"game": {"protocol": "tcp"}}}},
}


class RuntimeScene(MatchmakerScene):
    def __init__(
        self, engine: Engine, player_addresses: PlayerAddresses | None = None, **modes: Any
    ) -> None:
        super().__init__(
            engine,
            player_addresses or PlayerAddresses(advertised="192.0.2.7"),
            versions=[version(**{**MODES, **modes})],
        )
        self.runtime = RuntimeConnection(
            engine,
            self.namespaces,
            self.player_addresses,
            PlayerSessions(engine.processes),
            {TIER: Resources(1000, 2048)},
        )
        self.namespaces.on_version_replaced = self.runtime.other_versions.keep_if_starting
        self.free = (1_000_000, 1_000_000)
        self.resources = LobbyResources(engine, self.namespaces, self.runtime.size_of_lobby)
        self.quota = LobbyQuota(engine.counts, self.namespaces, self.resources, QuotaSettings())
        self.lobby_templates = LobbyTemplates(
            self.runtime.can_start,
            has_job_domain=self.player_addresses.job_domain is not None,
            heartbeat_grace_ms=10_000,
            availability=self.runtime,
            quota=self.quota,
        )
        self.routes = EdgeRoutes(engine, self.player_addresses, engine.status().epoch)
        self.wire(
            lobby_templates=self.lobby_templates,
            wait_served=self.routes.wait_lobby_served,
            quota_refusal=self.lobby_templates.quota_refusal,
        )
        self.lobby_scaler = LobbyScaler(
            engine, self.namespaces, self.lobby_templates, ["north", "south"], 30_000
        )
        self.unreachable: dict[str, str] = {}
        self.run = ""
        self.sequence = 0
        self.epoch = self.version = 0

    async def desired_lobbies(self, wait_ms: int = 0, kinds: tuple[str, ...] = ("archive",)) -> Any:
        answer = await self.runtime.desired_lobbies(
            runtime_pb2.WantedRequest(
                run=self.run,
                after_sequence=self.sequence,
                wait_ms=wait_ms,
                capacity=runtime_pb2.Capacity(
                    kinds=kinds, free_cpu_millicores=self.free[0], free_memory_mb=self.free[1]
                ),
                unreachable=(
                    runtime_pb2.UnreachableLobby(lobby_id=lobby_id, problem=problem)
                    for lobby_id, problem in self.unreachable.items()
                ),
            )
        )
        self.run, self.sequence = answer.run, answer.sequence
        return answer

    async def report(self, lobby_id: str, **status: Any) -> None:
        report = runtime_pb2.LobbyReport(lobby_id=lobby_id, **status)
        await self.runtime.report(runtime_pb2.ReportRequest(reports=[report]))

    async def place_process(self, lobby_id: str) -> None:
        names = {"game": 12_000, "web": 12_001}
        backends = {
            name: runtime_pb2.Backend(address="127.0.0.1", port=port)
            for name, port in names.items()
        }
        await self.report(lobby_id, placed=runtime_pb2.Placed(backends=backends))

    async def follow(
        self, *outcomes: routes_pb2.Outcome, instance: str = "one", question: int = 0
    ) -> Any:
        answer = await self.routes.follow(
            routes_pb2.FollowRequest(
                edge_id="edge",
                instance=instance,
                epoch=self.epoch,
                version=self.version,
                outcomes=outcomes,
                question=question,
            )
        )
        self.epoch, self.version = answer.epoch, answer.version
        return answer

    async def new_routes(self, **request: Any) -> list[routes_pb2.Route]:
        """Waits for changed routes, and returns them."""

        async def changed() -> list[routes_pb2.Route]:
            return list((await self.follow(**request)).routes)

        routes: list[routes_pb2.Route] = await eventually(changed)
        return routes

    async def serve(self) -> list[routes_pb2.Route]:
        routes = await self.new_routes()
        await self.follow(*(outcome(route, "LISTENING") for route in routes))
        return routes

    async def report_free(self, cpu_millicores: int, memory_mb: int) -> None:
        self.free = (cpu_millicores, memory_mb)
        await self.desired_lobbies()

    async def placed(self, lobby_id: str, finding: asyncio.Future[Any]) -> Any:
        """Makes the lobby ready, and returns the response to the find or create that waits for it."""
        await self.ready(lobby_id)
        return await asyncio.wait_for(finding, PATIENCE_S)

    async def ready(self, lobby_id: str) -> None:
        await self.fleet.ready(pb.LobbyReadyRequest(), self.server(lobby_id))

    @contextlib.asynccontextmanager
    async def starting(
        self, work: Awaitable[Any] | None = None
    ) -> AsyncIterator[tuple[Any, asyncio.Future[Any]]]:
        """Asks for a new lobby. Returns the desired lobby and the future response."""
        async with asking(work or self.find()) as finding:
            [lobby] = (await self.desired_lobbies(wait_ms=5_000)).lobbies
            yield lobby, finding

    async def started(self, work: Awaitable[Any] | None = None) -> tuple[Any, Any]:
        """Runs a find or create with a new lobby. Returns its response and the desired lobby."""
        async with self.starting(work) as (lobby, finding):
            await self.serve()
            await self.ready(lobby.lobby_id)
            return await asyncio.wait_for(finding, PATIENCE_S), lobby

    async def scale(self) -> list[Any]:
        """Runs one step of the scaler. Returns the changed lobbies."""
        await self.lobby_scaler.step()
        return list((await self.desired_lobbies()).lobbies)

    async def create(self, mode: str = "duel", **fields: Any) -> pb.CreateLobbyResponse:
        request = pb.CreateLobbyRequest(game_mode=mode, **fields)
        return await self.matchmaker.create(request, self.client())


def outcome(route: routes_pb2.Route, kind: str) -> routes_pb2.Outcome:
    return routes_pb2.Outcome(
        owner_id=route.owner_id,
        port_name=route.port_name,
        port=route.port,
        kind=f"OUTCOME_KIND_{kind}",
        reason={"REFUSED": "in use", "UNSERVED": "too many open files"}.get(kind, ""),
        backend_port=route.backend_port if kind == "LISTENING" else 0,
    )


async def connected_scene(engine: Engine, **modes: Any) -> RuntimeScene:
    scene = RuntimeScene(engine, **modes)
    assert (await scene.desired_lobbies()).is_complete
    return scene


@contextlib.asynccontextmanager
async def asking(work: Awaitable[Any]) -> AsyncIterator[asyncio.Future[Any]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ServiceError):
            await task
