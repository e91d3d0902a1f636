"""Revocation of tokens that were created but not delivered to the caller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Connection

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control import undelivered_secrets
from pyservice.control.authorization import GrantedScope
from pyservice.control.data_plane_client import DataPlaneClient
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.tokens import TokenOperations
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import tokens_pb2 as pb
from pyservice.process.background_tasks import BackgroundTasks
from pyservice.storage import games, groups
from pyservice.storage import tokens as rows
from pyservice.storage.database import Transaction, open_database
from pyservice.storage.list_pages import PageBounds
from pyservice.timestamps import now_ms
from pyservice.watch import Topics
from tests.control.feeder_setup import FedPlane, FeedScenario, Source, without_entry
from tests.control.feeder_setup import plane as plane
from tests.control.service_fixtures import each_database
from tests.support.databases import Databases
from tests.support.postgres_proxy import PostgresProxy, open_postgres_proxy
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

IDS: Final = RecordIds()
KINDS_OF_TOKENS: Final = ("env", "pub", "dev", "cloud")
on_postgresql = pytest.mark.parametrize("kind", ["postgresql"])
NOT_YET: Final = "an undelivered token is not revoked yet"
LOCK: Final = {
    "sqlite": (
        "CREATE TRIGGER busy_{table} BEFORE DELETE ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'another transaction was faster'); END",
    ),
    "postgresql": (
        "CREATE OR REPLACE FUNCTION busy() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'another transaction was faster' USING ERRCODE = '40001'; END$$",
        "CREATE TRIGGER busy_{table} BEFORE DELETE ON {table} EXECUTE FUNCTION busy()",
    ),
}
UNLOCK: Final = {
    "sqlite": "DROP TRIGGER busy_{table}",
    "postgresql": "DROP TRIGGER busy_{table} ON {table}",
}


class AfterCommit:
    """Runs a test's action directly after the next commit."""

    def __init__(self, database: Any) -> None:
        self._write = database.write
        self.act: Callable[[], Awaitable[None]] | None = None
        database.write = self._watched

    @contextlib.asynccontextmanager
    async def _watched(self) -> AsyncIterator[Transaction]:
        async with self._write() as tx:
            yield tx
        act, self.act = self.act, None
        if act is not None:
            await act()


class TokenScenario:
    """Token operations with a data plane that cannot sign tokens."""

    def __init__(self, feed: FeedScenario, folder: Path, proxy: PostgresProxy | None) -> None:
        self.feed = feed
        self.database = feed.source.database
        self.after_commit = AfterCommit(self.database)
        self._folder = folder
        self.proxy = proxy
        self.tasks = BackgroundTasks()
        self.topics = Topics()
        self.tokens = TokenOperations(
            RecordContext(self.database, IdempotentChanges(self.database), IDS, self.topics),
            feed.feeder,
            DataPlaneClient(feed._client),
            lambda: None,
            self.tasks.finish,
        )

    async def open(self) -> TokenScenario:
        self.namespace_id = await self.feed.namespace()
        self.identity_id, self.own_token_id = IDS.new(), IDS.new()
        async with self.database.write() as tx:
            await groups.add_identity(tx, self.identity_id, "Somebody", now_ms())
            own = rows.NewCloudToken(self.own_token_id, b"", now_ms(), self.identity_id)
            await rows.add_cloud(tx, own)
            game = await games.find(tx, self.feed.source.game_id)
        assert game is not None
        self.group_id = str(game.group_id)
        return self

    def caller(self, key: str | None = None) -> Caller:
        call = Call("0" * 32, b"\x7f\0\0\1", idempotency_key=key)
        reach = GrantedScope(self.identity_id, self.own_token_id, None, None, (self.group_id,))
        return Caller(TokenKind.CLOUD, b"", b"", b"x" * 16, call, reach)

    async def create_token(self, token_kind: str, key: str | None = None) -> Any:
        game_id, namespace_id = self.feed.source.game_id, self.namespace_id
        caller = self.caller(key)
        if token_kind == "env":
            return await self.tokens.issue_service_token(
                self.namespace_id, self.group_id, without_entry
            )
        if token_kind == "pub":
            public = pb.CreatePublicTokenRequest(game_id=game_id, namespace_id=namespace_id)
            return await self.tokens.create_public(public, caller)
        if token_kind == "dev":
            development = pb.CreateDevelopmentTokenRequest(
                game_id=game_id, namespace_id=namespace_id, hostname="localhost"
            )
            return await self.tokens.create_development(development, caller)
        game = pb.CreateGameTokenRequest(game_id=game_id)
        return await self.tokens.create_of_game(game, caller)

    async def token_ids(self) -> list[str]:
        async with self.feed.source.database.read() as tx:
            of_namespace = await rows.of_namespace(tx, self.namespace_id, PageBounds())
            of_group = await rows.of_group(tx, self.group_id, PageBounds())
        return [row.token_id for row in (*of_namespace.rows, *of_group.rows)]

    async def wait_until_none(self) -> None:
        async def is_empty() -> bool:
            return not await self.token_ids()

        await eventually(is_empty)

    async def run(self, *statements: str) -> None:
        def work(connection: Connection) -> None:
            for statement in statements:
                connection.exec_driver_sql(statement)

        await self.database.run_sync(work)

    @contextlib.asynccontextmanager
    async def no_removal(self) -> AsyncIterator[None]:
        """Makes the database abort each deletion of a token, as a deadlock does."""
        tables = ("namespace_tokens", "cloud_tokens")
        name = self.database.name
        for table in tables:
            await self.run(*(one.format(table=table) for one in LOCK[name]))
        yield
        for table in tables:
            await self.run(UNLOCK[name].format(table=table))

    async def hide_database(self) -> None:
        if self.proxy is None:
            (self._folder / "records.db").rename(self._folder / "away")
        else:
            self.proxy.shut()

    async def restore_database(self) -> None:
        if self.proxy is None:
            (self._folder / "away").rename(self._folder / "records.db")
        else:
            await self.proxy.open()


@pytest.fixture
async def token_scenario(
    kind: str, databases: Databases, plane: FedPlane, tmp_path: Path
) -> AsyncIterator[TokenScenario]:
    async with contextlib.AsyncExitStack() as stack:
        url, proxy = await databases.migrated_url(kind, tmp_path), None
        if url is not None:
            proxy = await stack.enter_async_context(open_postgres_proxy(url))
        source = Source(open_database(None if proxy is None else proxy.url, tmp_path))
        stack.push_async_callback(source.database.close)
        await source.prepare()
        feed = FeedScenario(source, plane)
        stack.push_async_callback(feed.close)
        feed.run()
        await feed.wait_until_connected()
        token_scenario = await TokenScenario(feed, tmp_path, proxy).open()
        yield token_scenario
        await token_scenario.tasks.stop()


async def outcome(asking: Awaitable[Any]) -> str:
    try:
        await asking
    except ServiceError as error:
        return error.code
    except Exception as error:  # noqa: BLE001 (the test compares it)
        return type(error).__name__
    return "OK"


# Undelivered --------------------------------------------------------------------------------------


@each_database
@pytest.mark.parametrize("token_kind", ["pub", "dev"])
async def test_unreadable_records_after_commit_leave_no_token(
    token_scenario: TokenScenario, token_kind: str
) -> None:
    async def lose() -> None:
        assert len(await token_scenario.token_ids()) == 1
        await token_scenario.run("ALTER TABLE games RENAME TO games_away")

    token_scenario.after_commit.act = lose
    assert await outcome(token_scenario.create_token(token_kind)) != "OK"
    assert await token_scenario.token_ids() == []
    await token_scenario.run("ALTER TABLE games_away RENAME TO games")
    # With an idempotency key, a repeated request returns the same token.
    token_scenario.after_commit.act = lose
    assert await outcome(token_scenario.create_token(token_kind, "key")) != "OK"
    assert len(await token_scenario.token_ids()) == 1
    await token_scenario.run("ALTER TABLE games_away RENAME TO games")


@pytest.mark.parametrize("token_kind", ["pub", "dev"])
async def test_unsigned_token_is_revoked(token_scenario: TokenScenario, token_kind: str) -> None:
    assert await outcome(token_scenario.create_token(token_kind)) != "OK"
    assert await token_scenario.token_ids() == []


@on_postgresql
async def test_lost_commit_response_leaves_no_token(token_scenario: TokenScenario) -> None:
    proxy = token_scenario.proxy
    assert proxy is not None
    for token_kind in KINDS_OF_TOKENS:
        proxy.cut_at = b"COMMIT\0"
        assert await outcome(token_scenario.create_token(token_kind)) == "CONTROL_PLANE_UNAVAILABLE"
        proxy.cut_at = None
        await token_scenario.wait_until_none()
    assert proxy.cuts >= len(KINDS_OF_TOKENS)


@on_postgresql
@pytest.mark.parametrize("token_kind", ["env", "cloud"])
async def test_deadlocked_creation_is_retried(
    token_scenario: TokenScenario, token_kind: str
) -> None:
    table = "cloud_tokens" if token_kind == "cloud" else "namespace_tokens"
    await token_scenario.run(
        "CREATE SEQUENCE conflicts",
        "CREATE FUNCTION once() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
        "IF nextval('conflicts') = 1 THEN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END IF; "
        "RETURN NEW; END$$",
        f"CREATE TRIGGER once BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION once()",
    )
    created = await token_scenario.create_token(token_kind)
    assert await token_scenario.token_ids() == [created.token_id]


async def test_watches_end_with_an_undelivered_token(token_scenario: TokenScenario) -> None:
    ended: list[str] = []
    token_scenario.topics.listen(lambda changes: ended.extend(one.topic for one in changes.topics))
    created: list[str] = []

    async def disconnect() -> None:
        created.extend(await token_scenario.token_ids())
        creating.cancel()

    token_scenario.after_commit.act = disconnect
    creating = asyncio.create_task(token_scenario.create_token("cloud"))
    with contextlib.suppress(asyncio.CancelledError):
        await creating
    await token_scenario.wait_until_none()
    (token_id,) = created

    async def has_ended() -> bool:
        return f"token:{token_id}" in ended

    await eventually(has_ended)


# Revocation ---------------------------------------------------------------------------------------


@each_database
@pytest.mark.parametrize("token_kind", ["env", "pub", "dev"])
async def test_deadlocked_revocation_is_retried(
    token_scenario: TokenScenario, token_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeder = token_scenario.feed.feeder
    monkeypatch.setattr(feeder, "confirm", partial(feeder.confirm, wait_s=0.05))
    token_scenario.feed.plane.go_on.clear()
    async with token_scenario.no_removal():
        assert await outcome(token_scenario.create_token(token_kind)) == "CONTROL_PLANE_UNAVAILABLE"
        assert len(await token_scenario.token_ids()) == 1
    await token_scenario.wait_until_none()
    token_scenario.feed.plane.go_on.set()


@each_database
@pytest.mark.parametrize("token_kind", KINDS_OF_TOKENS)
async def test_revocation_continues_without_its_caller(
    token_scenario: TokenScenario, token_kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    committed, disconnected = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        committed.set()
        await disconnected.wait()

    token_scenario.after_commit.act = wait
    async with token_scenario.no_removal():
        request = asyncio.ensure_future(token_scenario.create_token(token_kind))
        await asyncio.wait_for(committed.wait(), PATIENCE_S)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        disconnected.set()

        async def is_tried() -> bool:
            return NOT_YET in capsys.readouterr().out

        await eventually(is_tried)
        assert len(await token_scenario.token_ids()) == 1
    await token_scenario.wait_until_none()


@each_database
@pytest.mark.parametrize("token_kind", ["pub", "dev"])
async def test_lost_database_revokes_the_token_when_back(
    token_scenario: TokenScenario, token_kind: str
) -> None:
    token_scenario.after_commit.act = token_scenario.hide_database
    assert await outcome(token_scenario.create_token(token_kind)) == "CONTROL_PLANE_UNAVAILABLE"
    await token_scenario.restore_database()
    assert len(await token_scenario.token_ids()) <= 1
    await token_scenario.wait_until_none()


@each_database
@pytest.mark.parametrize(
    "tried_s",
    [0.3, pytest.param(3_600.0, marks=pytest.mark.full)],
    ids=["too long", "until the plane stops"],
)
async def test_token_kept_by_a_lost_database_is_logged(
    token_scenario: TokenScenario,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tried_s: float,
) -> None:
    monkeypatch.setattr(undelivered_secrets, "_REVOKE_TIMEOUT_S", tried_s)
    token_scenario.after_commit.act = token_scenario.hide_database
    assert await outcome(token_scenario.create_token("dev")) == "CONTROL_PLANE_UNAVAILABLE"
    async with asyncio.timeout(PATIENCE_S):
        await token_scenario.tasks.stop()
    await token_scenario.restore_database()
    [token_id] = await token_scenario.token_ids()
    log = " ".join("".join(capsys.readouterr()).split())
    assert f"undelivered token not revoked token_ids=['{token_id}']" in log
