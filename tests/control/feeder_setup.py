"""Feeder between a real database and the feed of a data plane behind a socket.

Tests can delay the data plane, stop it, or delete its files.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from sqlalchemy import update

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control import feeder
from pyservice.control.authorization import GrantedScope
from pyservice.control.configuration_encoding import encode
from pyservice.control.data_plane_client import DataPlaneClient
from pyservice.control.feed_lanes import Confirmation
from pyservice.control.feed_messages import FeedComposer
from pyservice.control.feeder import Feeder
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.namespace_access import NamespaceAccessOperations
from pyservice.control.namespaces import NamespaceChange, NamespaceOperations
from pyservice.control.resource_summaries import PublicUrls
from pyservice.control.tokens import TokenOperations
from pyservice.dataplane.configuration_feed import HELD_BYTES_MAX, ConfigurationFeed
from pyservice.dataplane.feed_files import FeedFiles
from pyservice.dataplane.feed_validation import OperatorLimits
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.observability.metrics import FeedMetrics
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2
from pyservice.pb.hosting.v1 import namespaces_pb2, tokens_pb2, versions_pb2
from pyservice.rpc import Handler, InternalClient, InternalServer
from pyservice.storage import games, groups, namespaces
from pyservice.storage.database import Database, Transaction
from pyservice.storage.tables import namespaces as namespaces_table
from pyservice.timestamps import now_ms
from pyservice.watch import Topics
from tests.support.token_checks import is_revoked
from tests.support.waiting import PATIENCE_S, eventually

EPOCH = 1_700_000_000_000
IDS = RecordIds()
LIMIT = 256
DOMAIN = "play.example"
BULK = 40_000
TOO_MANY = LIMIT + 1
LINKS = PublicUrls("http://cdn.invalid", None, "http://hub.invalid", None, str)
Answered = TypeVar("Answered")


async def wait_for(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


class FedPlane:
    """Feed of a data plane. `go_on` delays writes, and `may_return_held` delays the list of held namespaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "admin.sock"
        self.limit = LIMIT
        self.held_bytes_max = HELD_BYTES_MAX
        (folder / "feed").mkdir()
        self.acknowledged: list[tuple[str, int]] = []
        self.received: list[str] = []
        """Namespaces of the received messages, also of messages that `go_on` delays."""
        self.held_requests = 0
        self.breaks_on = ""
        """Writes for the namespace with this id raise an unexpected error."""
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.may_return_held = asyncio.Event()
        self.may_return_held.set()
        self._server: InternalServer | None = None
        self._writing: set[asyncio.Future[Any]] = set()

    async def start(self) -> None:
        limits = OperatorLimits(player_limit_max=self.limit, regions={"local"})
        self.namespaces, files = NamespaceIndex(), FeedFiles(self.folder / "feed")
        self.feed = ConfigurationFeed(
            files,
            self.namespaces,
            limits,
            FeedMetrics(),
            held_bytes_max=self.held_bytes_max,
        )
        self.feed.load()
        name = "hosting.internal.v1.Feed"
        handlers: dict[str, Handler] = {
            f"{name}.ApplyMany": self._apply,
            f"{name}.Held": self._held,
            f"{name}.Remove": self._remove,
        }
        self._server = InternalServer(handlers, self.socket)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(0.0)
            # Started writes must end before the next process uses the folder.
            await asyncio.gather(*self._writing, return_exceptions=True)

    def lose_its_disk(self) -> None:
        shutil.rmtree(self.folder / "feed")
        (self.folder / "feed").mkdir()

    async def _apply(self, request: feed_pb2.ApplyManyRequest) -> feed_pb2.ApplyManyResponse:
        self.received += (item.configuration.namespace_id for item in request.items)
        await self.go_on.wait()
        if self.breaks_on in (item.configuration.namespace_id for item in request.items):
            raise RuntimeError("broken")
        answer = await self._to_its_end(self.feed.apply_many(request))
        for item, one in zip(request.items, answer.answers, strict=True):
            if one.HasField("applied") and not item.is_check:
                configuration = item.configuration
                self.acknowledged.append((configuration.namespace_id, configuration.revision))
        return answer

    async def _remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse:
        return await self._to_its_end(self.feed.remove(request))

    async def _to_its_end(self, work: Coroutine[Any, Any, Answered]) -> Answered:
        writing = asyncio.ensure_future(work)
        if self._server is None:
            writing.cancel()
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        return await asyncio.shield(writing)

    async def _held(self, request: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse:
        self.held_requests += 1
        answer = await self.feed.held_configurations(request)
        await self.may_return_held.wait()
        return answer

    def is_revoked(self, namespace_id: str, token_id: str) -> bool:
        return is_revoked(self.namespaces, raw_id(namespace_id), raw_id(token_id))

    async def wait_for_poll(self) -> None:
        before = self.held_requests
        await wait_for(lambda: self.held_requests > before)

    def holds(self, namespace_id: str) -> configuration_pb2.NamespaceConfiguration | None:
        matching = (one for one in self.namespaces if one.namespace_id == namespace_id)
        return next(matching, None)


class Source:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.game_id, self.group_id = IDS.new(), IDS.new()

    async def prepare(self, name_id: str = "arena") -> None:
        owner = IDS.new()
        async with self.database.write() as tx:
            await groups.add_identity(tx, owner, "Owner", now_ms())
            await groups.add(tx, self.group_id, name_id, owner, now_ms())
            await games.add(tx, self.game_id, name_id, "Arena", self.group_id, now_ms())

    async def version(self, players: int = 8, bulk: int = 0) -> str:
        """Adds a version with one mode, which the data plane refuses above `LIMIT` players. `bulk` adds bytes."""
        config = versions_pb2.CloudConfig()
        for number in range(bulk // 8_000):
            config.matchmaker.docker.env.entries[f"V{number}"] = "v" * 8_000
        config.matchmaker.max_players = players
        mode = config.matchmaker.game_modes.entries["duel"]
        mode.SetInParent()
        return await self.add_version(config)

    async def add_version(self, config: versions_pb2.CloudConfig) -> str:
        version_id = IDS.new()
        async with self.database.write() as tx:
            new = games.NewVersion(version_id, self.game_id, version_id, now_ms(), encode(config))
            await games.add_version(tx, new)
        return version_id

    async def namespace(self, name_id: str = "prod", players: int = 8) -> str:
        version_id, namespace_id = await self.version(players), IDS.new()
        async with self.database.write() as tx:
            new = namespaces.NewNamespace(namespace_id, name_id, name_id, IDS.new())
            await namespaces.add(tx, self.game_id, version_id, [new], (512, 256), now_ms())
        return namespace_id

    async def set_version(self, namespace_id: str, version_id: str) -> None:
        async with self.database.write() as tx:
            await namespaces.change(tx, namespace_id, {"version_id": version_id})
            await namespaces.add_history(tx, IDS.new(), namespace_id, version_id, now_ms())

    async def touch(self, namespace_id: str, lobby_count_max: int) -> None:
        async with self.database.write() as tx:
            await namespaces.change(tx, namespace_id, {"lobby_count_max": lobby_count_max})

    async def row(self, namespace_id: str) -> Any:
        async with self.database.read() as tx:
            return await namespaces.get(tx, namespace_id)

    async def history(self, namespace_id: str) -> list[str]:
        async with self.database.read() as tx:
            entries = await namespaces.newest_history(tx, namespace_id, 100)
        return [entry.version_id for entry in entries]

    async def set_revision(self, namespace_id: str, revision: int) -> None:
        is_it = namespaces_table.c.namespace_id == namespace_id
        async with self.database.write() as tx:
            await tx.run(update(namespaces_table).where(is_it).values(revision=revision))


class FeedScenario:
    """Records, a running feeder, and the data plane that receives its messages."""

    def __init__(self, source: Source, plane: FedPlane) -> None:
        self.source = source
        self.plane = plane
        self._client = InternalClient(plane.socket)
        self.feeder = self.new_feeder()
        self._running: asyncio.Task[None] | None = None

    def new_feeder(self, epoch: int = EPOCH) -> Feeder:
        composer = FeedComposer(epoch, LINKS)
        return Feeder(self.source.database, composer, DataPlaneClient(self._client))

    def run(self) -> None:
        self._running = asyncio.create_task(self.feeder.run())

    async def run_anew(self, epoch: int = EPOCH) -> None:
        await self.end()
        self.feeder = self.new_feeder(epoch)
        self.run()

    async def end(self) -> None:
        if self._running is not None:
            assert not self._running.done(), self._running
            self._running.cancel()
            await asyncio.wait({self._running})
            self._running = None

    async def close(self) -> None:
        await self.end()
        await self._client.close()

    async def namespace(self, name_id: str = "prod", players: int = 8) -> str:
        """Adds a namespace and waits until the data plane holds it."""
        namespace_id = await self.source.namespace(name_id, players)
        await self.enqueue_and_confirm(namespace_id)
        return namespace_id

    async def namespaces(self, count: int) -> list[str]:
        names = [await self.source.namespace(f"n{number}") for number in range(count)]
        await asyncio.gather(*map(self.enqueue_and_confirm, names))
        return names

    async def enqueue_and_confirm(self, namespace_id: str, version_id: str | None = None) -> None:
        """Enqueues a namespace and waits for its confirmation, longer than the product does."""
        confirmation = Confirmation(version_id)
        self.feeder.enqueue(namespace_id, self.source.group_id, confirmation)
        await self.feeder.confirm(confirmation, wait_s=PATIENCE_S)

    async def refusal(self, namespace_id: str, version_id: str | None = None) -> ServiceError:
        with pytest.raises(ServiceError) as caught:
            await self.enqueue_and_confirm(namespace_id, version_id)
        assert caught.value.code == "VALIDATION_FAILED"
        return caught.value

    async def check_version(self, namespace_id: str, version_id: str) -> None:
        """Checks a version with a long timeout. The feeder refuses a check until it is connected."""
        await self.wait_until_connected()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feeder, "_CHECK_TIMEOUT_S", PATIENCE_S)
            await self.feeder.check_version(namespace_id, self.source.group_id, version_id)

    async def wait_until_connected(self) -> None:
        await wait_for(lambda: self.feeder.is_connected)

    async def wait_until_idle(self) -> None:
        await wait_for(lambda: not self.feeder.waiting)

    async def wait_until_equal(self, namespace_id: str) -> None:
        async def is_equal() -> bool:
            row, configuration = await self.source.row(namespace_id), self.plane.holds(namespace_id)
            stored = row.revision, row.version_id
            return (
                configuration is not None
                and (configuration.revision, configuration.current_version_id) == stored
            )

        await eventually(is_equal)

    def configuration(self, namespace_id: str) -> configuration_pb2.NamespaceConfiguration:
        configuration = self.plane.holds(namespace_id)
        assert configuration is not None
        return configuration


class Developer:
    """Operations of a developer group that has one game."""

    def __init__(self, feed: FeedScenario, source: Source) -> None:
        self.feed, self.source = feed, source
        context = RecordContext(source.database, IdempotentChanges(source.database), IDS, Topics())
        change = NamespaceChange(context, feed.feeder)
        self._operations = NamespaceOperations(
            context,
            feed.feeder,
            change,
            cast(Any, None),
            cast(Any, None),
            lambda: None,
            lambda version_id: None,
        )
        self._access = NamespaceAccessOperations(source.database, change)
        client = DataPlaneClient(feed._client)
        self._tokens = TokenOperations(
            context, feed.feeder, client, lambda: None, lambda name, work: None
        )
        scope = GrantedScope(IDS.new(), "token", None, None, (source.group_id,))
        self._caller = Caller(
            TokenKind.CLOUD, b"", b"", b"x" * 16, Call("0" * 32, b"\x7f\0\0\1"), scope
        )

    async def namespaces(self, count: int, bulk: int = BULK) -> list[str]:
        """Adds namespaces with versions of `bulk` bytes, and waits until the data plane has them."""
        version_id = await self.source.version(bulk=bulk)
        names = []
        for number in range(count):
            names.append(await self.source.namespace(f"n{number}"))
            await self.source.set_version(names[-1], version_id)
        self.feed.feeder.compare_again()
        for name in names:
            await self.feed.wait_until_equal(name)
        await self.feed.wait_until_idle()
        return names

    def _path(self, namespace_id: str) -> dict[str, str]:
        return {"game_id": self.source.game_id, "namespace_id": namespace_id}

    async def set_limits(self, namespace_id: str) -> None:
        request = namespaces_pb2.UpdateMatchmakerConfigRequest(
            **self._path(namespace_id), lobby_count_max=7, max_players=7
        )
        await self._operations.set_limits(request, self._caller)

    async def set_version(self, namespace_id: str, version_id: str, key: str | None = None) -> None:
        request = namespaces_pb2.UpdateNamespaceVersionRequest(
            **self._path(namespace_id), version_id=version_id
        )
        call = replace(self._caller.call, idempotency_key=key)
        await self._operations.set_version(request, replace(self._caller, call=call))

    async def new_token(self, namespace_id: str) -> str:
        group_id = self.source.group_id
        new = await self._tokens.issue_service_token(namespace_id, group_id, without_entry)
        return new.token_id

    async def revoke(self, namespace_id: str, token_id: str) -> None:
        request = tokens_pb2.RevokeNamespaceTokenRequest(
            game_id=self.source.game_id, namespace_id=namespace_id, token_id=token_id
        )
        await self._tokens.revoke_of_namespace(request, self._caller)

    async def add_domain(self, namespace_id: str) -> None:
        request = namespaces_pb2.AddDomainRequest(**self._path(namespace_id), domain=DOMAIN)
        await self._access.add_domain(request, self._caller)

    async def remove_domain(self, namespace_id: str) -> None:
        request = namespaces_pb2.RemoveDomainRequest(**self._path(namespace_id), domain=DOMAIN)
        await self._access.remove_domain(request, self._caller)

    async def set_site_login(self, namespace_id: str) -> None:
        request = namespaces_pb2.SetCdnAuthRequest(**self._path(namespace_id), auth_type="basic")
        await self._access.set_cdn_auth(request, self._caller)

    async def disable_domains(self, namespace_id: str) -> None:
        request = namespaces_pb2.SetDomainPublicAuthRequest(
            **self._path(namespace_id), enabled=False
        )
        await self._access.set_domain_public_auth(request, self._caller)


async def developer(feed: FeedScenario, name_id: str) -> Developer:
    source = Source(feed.source.database)
    await source.prepare(name_id)
    return Developer(feed, source)


@pytest.fixture
async def source(database: Database) -> Source:
    source = Source(database)
    await source.prepare()
    return source


@pytest.fixture
async def plane() -> AsyncIterator[FedPlane]:
    # A socket path has a length limit that `tmp_path` can exceed.
    with tempfile.TemporaryDirectory() as folder:
        plane = FedPlane(Path(folder))
        await plane.start()
        yield plane
        await plane.stop()


@pytest.fixture
async def feed(source: Source, plane: FedPlane) -> AsyncIterator[FeedScenario]:
    feed = FeedScenario(source, plane)
    feed.run()
    yield feed
    await feed.close()


async def code_of(feed: FeedScenario, namespace_id: str, version_id: str | None = None) -> str:
    try:
        await feed.enqueue_and_confirm(namespace_id, version_id)
    except ServiceError as error:
        return error.code
    return "OK"


async def unconfirmed(feed: FeedScenario, namespace_id: str, wait_s: float = 0.05) -> ServiceError:
    confirmation = Confirmation()
    feed.feeder.enqueue(namespace_id, feed.source.group_id, confirmation)
    with pytest.raises(ServiceError) as caught:
        await feed.feeder.confirm(confirmation, wait_s=wait_s)
    assert caught.value.code == "CONTROL_PLANE_UNAVAILABLE"
    return caught.value


async def running_version(feed: FeedScenario, namespace_id: str) -> str:
    return str((await feed.source.row(namespace_id)).version_id)


async def wait_until_running(feed: FeedScenario, namespace_id: str, version_id: str) -> None:
    await feed.wait_until_equal(namespace_id)
    assert await running_version(feed, namespace_id) == version_id
    await feed.wait_until_idle()


async def without_entry(_tx: Transaction, _token_id: str) -> None:
    """Adds no audit entry for a new token."""
