"""Tokens in a feed message: old ones must not fill it."""

from __future__ import annotations

import pytest

from pyservice.control.feed_messages import FeedComposer
from pyservice.control.tokens import new_secret
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.storage import games, tokens
from tests.control.feeder_setup import EPOCH, IDS, LINKS, Source
from tests.control.feeder_setup import source as source
from tests.control.service_fixtures import each_database

pytestmark = [pytest.mark.anyio, each_database]

NOW_MS = EPOCH + 1_000_000
LATER_MS = NOW_MS + 1
ENVIRONMENT_MAX = 2_000


async def composed(source: Source, namespace_id: str) -> pb.NamespaceConfiguration:
    async with source.database.read() as tx:
        message = await FeedComposer(EPOCH, LINKS, lambda: NOW_MS).compose(tx, namespace_id)
    assert message is not None
    return message


async def add(
    source: Source,
    namespace_id: str,
    kind: str,
    count: int = 1,
    *,
    expires_ms: int | None = None,
    revoke_ms: int | None = None,
) -> list[str]:
    ids = [IDS.new() for _ in range(count)]
    async with source.database.write() as tx:
        for one in ids:
            answers = pb.DevelopmentToken(token_id=one, expires_ms=expires_ms)
            await tokens.add_of_namespace(
                tx,
                one,
                namespace_id,
                kind,
                NOW_MS,
                sha256=new_secret("env").sha256 if kind == "env" else None,
                answers=answers.SerializeToString() if kind == "dev" else None,
                expires_ms=expires_ms,
            )
            if revoke_ms is not None:
                await tokens.revoke_of_namespace(tx, one, revoke_ms)
    return ids


async def test_game_of_the_namespace_is_fed(source: Source) -> None:
    namespace_id = await source.namespace()
    message = await composed(source, namespace_id)
    async with source.database.read() as tx:
        game = await games.find(tx, source.game_id)
    assert game is not None
    assert message.game.game_id == source.game_id
    assert message.game.developer_group_id == game.group_id


async def fed_token_ids(source: Source, namespace_id: str) -> tuple[set[str], set[str], set[str]]:
    message = await composed(source, namespace_id)
    messages = (message.environment_tokens, message.development_tokens)
    environment, development = ({one.token_id for one in several} for several in messages)
    return environment, development, set(message.revoked_token_ids)


async def test_token_is_fed_while_it_can_be_used(source: Source) -> None:
    target, other = await source.namespace(), await source.namespace("staging")
    await add(source, target, "pub")
    (public,) = await add(source, target, "pub", revoke_ms=NOW_MS)
    (running,) = await add(source, target, "dev", expires_ms=LATER_MS)
    (ended,) = await add(source, target, "dev", expires_ms=LATER_MS, revoke_ms=NOW_MS)
    await add(source, target, "dev", expires_ms=NOW_MS)
    await add(source, target, "dev", expires_ms=NOW_MS, revoke_ms=NOW_MS - 1)
    (good,) = await add(source, target, "env")
    (revoked,) = await add(source, target, "env", revoke_ms=NOW_MS)
    expected = ({good, revoked}, {running}, {public, ended, revoked})
    assert await fed_token_ids(source, target) == expected
    assert await fed_token_ids(source, other) == (set(), set(), set())


async def test_latest_expired_service_tokens_are_fed(source: Source) -> None:
    target, other = await source.namespace(), await source.namespace("staging")
    (oldest_but_good,) = await add(source, target, "env")
    (old_but_ended_last,) = await add(source, target, "env", revoke_ms=NOW_MS)
    first = await add(source, target, "env", 5, revoke_ms=NOW_MS - 2)
    await add(source, target, "env", ENVIRONMENT_MAX - 2, revoke_ms=NOW_MS - 1)
    neighbours = set(await add(source, other, "env", revoke_ms=NOW_MS - 9))
    environment, _, revoked = await fed_token_ids(source, target)
    assert len(environment) == ENVIRONMENT_MAX
    assert {oldest_but_good, old_but_ended_last} <= environment
    assert environment.isdisjoint(first)
    assert revoked == environment - {oldest_but_good}
    assert await fed_token_ids(source, other) == (neighbours, set(), neighbours)
