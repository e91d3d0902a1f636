"""The composition root: the only place where parts meet. Builds a data plane from settings, starts
it in order, says that it is ready, and takes it down in order.

What a part does is its own matter.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import uvloop

from pyservice import keyring
from pyservice.auth import Authorizer
from pyservice.dataplane import compaction, engine
from pyservice.dataplane.administration import Administration
from pyservice.dataplane.compaction import Compactor
from pyservice.dataplane.facts import Facts
from pyservice.dataplane.feed import Feed
from pyservice.dataplane.feed_files import FeedFileError, FeedFiles
from pyservice.dataplane.feed_rules import OperatorLimits
from pyservice.dataplane.fleet import Fleet
from pyservice.dataplane.key_rotation import KeyRotation
from pyservice.dataplane.matchmaker import Matchmaker
from pyservice.dataplane.namespaces import Namespaces
from pyservice.dataplane.operations import operations
from pyservice.dataplane.regions import Region, Regions
from pyservice.dataplane.static_feed import StaticFeed
from pyservice.dataplane.upkeep import JournalWatch, LoopWatch, StorageWatch
from pyservice.doors import DoorSettings
from pyservice.doors.limits import Limits, Rate
from pyservice.edge.asgi import create_app
from pyservice.edge.probes import create_probes
from pyservice.edge.server import make_server
from pyservice.errors import ServiceError
from pyservice.listener import AsgiServer, bound, listen
from pyservice.observability.logging import configure_logging, get_logger
from pyservice.observability.metrics import RequestMetrics
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.process import (
    DirectoryLock,
    DirectoryUnusable,
    StopSignals,
    remove_ready_file,
    write_ready_file,
)
from pyservice.readiness import Phase, Readiness
from pyservice.rpc import InternalClient, InternalServer, RpcServer, Unreachable
from pyservice.settings import ListenAddress, RateLimit, Settings, SettingsError

_INTERNAL: Final = "hosting.internal.v1"
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_RETRY_MS: Final = 1_000

_log = get_logger("service")


def run(settings: Settings, reread: Callable[[], Settings], ready_file: Path | None) -> int:
    """Serves until a signal; the exit status. What prevents a start is told on standard error."""
    configure_logging(level=settings.log_level, format=settings.log_format)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, reread, ready_file))
    except (
        DirectoryUnusable,
        keyring.KeyringError,
        FeedFileError,
        engine.OpenFailed,
        OSError,
    ) as error:
        print(f"pyservice: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(
    settings: Settings, reread: Callable[[], Settings], ready_file: Path | None
) -> None:
    signals = StopSignals()
    lock = DirectoryLock.take(settings.data_dir)
    try:
        if ready_file is not None:
            remove_ready_file(ready_file)
        plane = DataPlane(settings)
        signals.install(asyncio.get_running_loop(), lambda: plane.reload(reread))
        if not await plane.recover(signals):
            return
        await signals.unless_stopped(plane.feed())
        if not signals.stop.is_set():
            addresses = await plane.start()
            _log.info("ready", **addresses)
            if ready_file is not None:
                await _tell_ready(ready_file, addresses, signals)
            await signals.stop.wait()
        await plane.stop(signals)
    finally:
        lock.release()


async def _tell_ready(path: Path, addresses: Mapping[str, str], signals: StopSignals) -> None:
    """Without room for the file it is written later: the service serves. Raises OSError."""
    while not signals.stop.is_set():
        try:
            write_ready_file(path, addresses)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            _log.error("no room for the ready file", error=str(error), retry_ms=_RETRY_MS)
            await signals.wait_stop(_RETRY_MS)
        else:
            return


class DataPlane:
    """All parts of a data plane process. `recover`, `feed`, `start` and `stop`, once each."""

    def __init__(self, settings: Settings) -> None:
        """Takes the ports first, so that clients wait for the recovery and are not refused."""
        self._settings = settings
        self._phase = Phase()
        self._readiness: Readiness | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._died: list[str] = []
        self._http_socket = listen(settings.http, settings.http_limits.backlog)
        self._probes_socket = listen(settings.metrics, settings.http_limits.backlog)
        self._ring = keyring.load_or_create(settings.data_dir)
        self._metrics = RequestMetrics(version=engine.version, build_profile=engine.build_profile)
        self._limits = Limits(*_rates(settings))
        self._namespaces = Namespaces()
        self._feed = Feed(
            FeedFiles(settings.data_dir / "feed"),
            self._namespaces,
            OperatorLimits(
                settings.player_limit_max, {region.name_id for region in settings.regions}
            ),
            self._metrics.feed,
        )
        # Configuration first: what the journal brings back is answered for at once.
        self._feed.load()
        self._client = InternalClient(settings.admin_socket)
        path = settings.feed_file
        over_socket = _FeedOverSocket(self._client)
        self._static_feed = StaticFeed(path, over_socket, self._feed) if path else None
        probes = create_probes(self._conditions, self._metrics, self._render)
        self._probes = AsgiServer(probes, self._probes_socket)

    async def recover(self, signals: StopSignals) -> bool:
        """Opens the engine while the probes answer, then the administrative socket; False when a
        signal came first.

        A disk without room for what recovery has to write is waited for: what is there is not lost.
        """
        await self._probes.start()
        journal_dir = self._settings.data_dir / "journal"
        limits = _engine_limits(self._settings)
        while not signals.stop.is_set():
            try:
                opened = await signals.unless_hung(
                    asyncio.to_thread(engine.open_engine, journal_dir, self._ring, limits)
                )
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                _log.error("no room to recover", error=str(error), retry_ms=_RETRY_MS)
                await signals.wait_stop(_RETRY_MS)
            else:
                self._engine = opened
                self._wire_doors(_regions(self._settings))
                self._wire_upkeep(limits)
                self._engine.start()
                await self._internal.start()
                return True
        await self._probes.stop()
        return False

    def _wire_doors(self, regions: Regions) -> None:
        settings = self._settings
        table = operations(
            Authorizer(self._engine, self._namespaces),
            Matchmaker(self._engine, self._namespaces, regions),
            Fleet(
                self._engine,
                self._namespaces,
                regions,
                heartbeat_timeout_ms=settings.attached_heartbeat_timeout_ms,
                heartbeat_grace_ms=settings.heartbeat_grace_ms,
            ),
        )
        door = _door(settings)
        app = create_app(table, door, self._metrics, self._limits)
        self._http = make_server(app, [self._http_socket])
        self._rpc = RpcServer(table, door, self._metrics, self._limits, str(settings.grpc))
        administration = Administration(
            self._namespaces,
            self._engine,
            self._static_feed,
            KeyRotation(settings.data_dir, self._engine),
        )
        facts = Facts(self._engine)
        self._internal = InternalServer(
            {
                f"{_INTERNAL}.Feed.Apply": self._feed.apply,
                f"{_INTERNAL}.Feed.Remove": self._feed.remove,
                f"{_INTERNAL}.Feed.Held": self._feed.held,
                f"{_INTERNAL}.Facts.Read": facts.read,
                f"{_INTERNAL}.Facts.Counts": facts.counts,
                f"{_INTERNAL}.Facts.Lobbies": facts.lobbies,
                f"{_INTERNAL}.Admin.CreateToken": administration.create_token,
                f"{_INTERNAL}.Admin.RotateKeys": administration.rotate_keys,
            },
            settings.admin_socket,
        )

    def _wire_upkeep(self, engine_limits: engine.Limits) -> None:
        settings = self._settings
        self._compactor = Compactor(
            self._engine, compaction.command(settings.data_dir, engine_limits)
        )
        static_feed = self._static_feed
        self._readiness = Readiness(
            phase=self._phase,
            status=self._engine.status,
            namespaces=lambda: len(self._namespaces),
            feed_problems=lambda: static_feed.problems if static_feed else (),
            journal=JournalWatch(self._engine.status),
            storage=StorageWatch(settings.data_dir, settings.storage_reserve_bytes),
            loop=LoopWatch(),
            compactor=self._compactor,
        )
        for watch in (
            self._readiness.journal,
            self._readiness.storage,
            self._readiness.loop,
            self._compactor,
        ):
            self._own(type(watch).__name__, watch.run())

    def _conditions(self) -> Mapping[str, str | None]:
        if self._readiness is None:
            return {"process": "recovering"}
        conditions = self._readiness.conditions()
        if self._died:
            conditions = {**conditions, "tasks": f"{', '.join(self._died)} died: see the log"}
        return conditions

    def _render(self) -> bytes:
        """Prometheus text that is not the doors'; runs in a thread."""
        if self._readiness is None:
            return b""
        native = self._engine.render_metrics(self._namespaces.labels())
        return native + self._readiness.render()

    async def feed(self) -> None:
        """Feeds the feed file, if there is one. What cannot be taken now is not waited for: what is
        held is good, and the rest is tried again meanwhile.
        """
        if self._static_feed is not None:
            self._own(type(self._static_feed).__name__, self._static_feed.run())
            await self._static_feed.fed()

    async def start(self) -> dict[str, str]:
        """Serves; returns where, when every operation can be answered."""
        await self._http.start()
        grpc_port = await self._rpc.start()
        self._phase.name = "serving"
        return {
            "http": bound(self._http_socket),
            "grpc": str(ListenAddress(self._settings.grpc.host, grpc_port)),
            "metrics": bound(self._probes_socket),
            "admin": str(self._settings.admin_socket),
        }

    def reload(self, reread: Callable[[], Settings]) -> None:
        """SIGHUP: rate limits and the feed file are read again; the rest needs a restart."""
        try:
            settings = reread()
        except SettingsError as error:
            for problem in error.problems:
                _log.error("settings not reloaded", problem=str(problem))
            return
        self._limits.change(*_rates(settings))
        if self._static_feed is not None:
            self._static_feed.reload()
        _log.info("reloaded")

    async def stop(self, signals: StopSignals) -> None:
        """Not ready, lame duck, no more accepting, finish, sync. A second signal hurries, and where
        nobody was served yet nothing is waited for.
        """
        was_serving = self._phase.is_serving
        self._phase.name = "stopping"
        _log.info("stopping", lame_duck_ms=self._settings.lame_duck_ms if was_serving else 0)
        if was_serving:
            self._rpc.health.set_serving(False)
            await signals.pause(self._settings.lame_duck_ms)
            self._engine.give_up_holds()
            await self._stop_doors(signals)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        await self._internal.stop(0.0)
        await signals.unless_hung(self._engine.close())
        await self._probes.stop()
        _log.info("stopped")

    async def _stop_doors(self, signals: StopSignals) -> None:
        grace_s = self._settings.stop_grace_ms / 1000
        doors = [
            asyncio.create_task(self._http.stop(grace_s)),
            asyncio.create_task(self._rpc.stop(grace_s)),
        ]
        hurry = asyncio.create_task(signals.hurry.wait())
        finished = asyncio.gather(*doors)
        either: set[asyncio.Future[Any]] = {finished, hurry}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not finished.done():
            await asyncio.gather(self._http.stop(0.0), self._rpc.stop(0.0))
        hurry.cancel()
        await finished

    def _own(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._note_end)
        self._tasks.append(task)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A task of ours ends when it is cancelled; without it we are not what we ought to be."""
        if not task.cancelled():
            _log.error("background task died", task=task.get_name(), exc_info=task.exception())
            self._died.append(task.get_name())


class _FeedOverSocket:
    """The data plane's feed, spoken to as a control plane does."""

    def __init__(self, client: InternalClient) -> None:
        self._client = client

    async def apply(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse:
        answer: feed_pb2.ApplyResponse = await self._call("Apply", request)
        return answer

    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse:
        answer: feed_pb2.RemoveResponse = await self._call("Remove", request)
        return answer

    async def _call(self, name: str, request: Any) -> Any:
        try:
            return await self._client.call(f"{_INTERNAL}.Feed.{name}", request)
        except Unreachable:
            # The feeder comes again; it knows no transport.
            raise ServiceError("OVERLOADED") from None


def _door(settings: Settings) -> DoorSettings:
    http, messages = settings.http_limits, settings.grpc_limits
    return DoorSettings(
        trusted_proxies=settings.trusted_proxies,
        proxy_protocol=settings.proxy_protocol,
        cors_origins=settings.cors_origins,
        body_limit_bytes=http.body_bytes,
        headers_limit_bytes=http.header_bytes,
        url_limit_bytes=http.url_bytes,
        receive_timeout_ms=http.slow_client_ms,
        keep_alive_timeout_ms=http.keep_alive_ms,
        backlog=http.backlog,
        message_limit_bytes=messages.message_bytes,
        streams_per_connection=messages.streams_per_connection,
    )


def _rates(settings: Settings) -> tuple[Rate, Rate]:
    """Rates of client operations, and of operators."""

    def rate(setting: RateLimit) -> Rate:
        return Rate(setting.per_second, setting.burst)

    return rate(settings.rate_limits.client), rate(settings.rate_limits.operator)


def _regions(settings: Settings) -> Regions:
    return Regions(
        Region(
            region.name_id,
            region.provider_display_name,
            region.region_display_name,
            region.latitude,
            region.longitude,
        )
        for region in settings.regions
    )


def _engine_limits(settings: Settings) -> engine.Limits:
    return engine.Limits(
        find_wait_ms=settings.find_wait_ms,
        start_limit_ms=settings.start_limit_ms,
        segment_bytes=settings.journal.segment_bytes,
        boot_id_path=settings.journal.boot_id_path,
    )
