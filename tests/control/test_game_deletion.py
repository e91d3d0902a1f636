"""Deletion of namespaces and games: users, players, tokens, names, and the removal of the remains."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from pyservice.storage import deletions
from tests.support.full_service import Developer, FullService, eventually
from tests.support.namespace_scenario import Records
from tests.support.upload_files import png, put

pytestmark = pytest.mark.anyio

GONE = frozenset({"TOKEN_INVALID", "TOKEN_REVOKED"})


class Arena:
    """A game with a lobby in the namespace `prod`, and a player in the lobby."""

    def __init__(self, developer: Developer) -> None:
        self.developer = developer
        self.client = developer.client

    async def open(self, **fields: Any) -> Arena:
        developer = self.developer
        self.game_id = await developer.game(**fields)
        self.game = {"game_id": self.game_id}
        self.prod = {**self.game, "namespace_id": "prod"}
        version_id = await developer.version(self.game_id)
        await developer.good("set_version", **self.prod, version_id=version_id)
        self.service_token = await developer.service_token(self.game_id)
        self.public_token = await developer.public_token(self.game_id)
        self.lobby = await developer.lobby(self.game_id, self.service_token)
        found = await self.client.call("find", {"game_modes": ["arena"]}, token=self.public_token)
        assert found.code == "OK", found
        self.player_token = found.body["player"]["token"]
        return self

    async def connect(self) -> str:
        fields = {"player_token": self.player_token}
        token = self.lobby["lobby_token"]
        return (await self.client.call("connected", fields, token=token)).code

    async def tokens_are_invalid(self) -> None:
        for token in (self.service_token, self.public_token):
            answer = await self.client.call("find", {"game_modes": ["arena"]}, token=token)
            assert answer.code in GONE, answer
        assert await self.connect() == "PLAYER_REMOVED"


@pytest.fixture
async def arena(developer: Developer) -> Arena:
    return await Arena(developer).open()


async def nothing_remains(records: Records) -> None:
    async def is_empty() -> bool:
        async with records.database.read() as tx:
            return not await deletions.removals_after(tx, "", 1)

    await eventually(is_empty)


async def test_namespace_is_deleted_with_its_players_access(
    arena: Arena, developer: Developer
) -> None:
    assert await developer.code("delete_namespace", **arena.prod) == "IN_USE"
    assert await arena.connect() == "OK"
    key = uuid4().hex
    assert await developer.good("delete_namespace", key, **arena.prod, force=True) == {}
    await arena.tokens_are_invalid()
    assert await developer.good("delete_namespace", key, **arena.prod, force=True) == {}
    assert await developer.code("delete_namespace", **arena.prod) == "NAMESPACE_NOT_FOUND"
    assert await developer.code("get_namespace", **arena.prod) == "NAMESPACE_NOT_FOUND"
    # A namespace of the same name has none of the old players, and takes none of the old tokens.
    named = {"name_id": "prod", "display_name": "Again"}
    versions = (await developer.good("list_versions", **arena.game))["versions"]
    fields = {**arena.game, **named, "version_id": versions[0]["version_id"]}
    await developer.good("create_namespace", **fields)
    token = await developer.public_token(arena.game_id)

    async def is_served() -> bool:
        return (await arena.client.call("list", {}, token=token)).code == "OK"

    await eventually(is_served)
    assert (await arena.client.call("list", {}, token=token)).body["lobbies"] == []
    await arena.tokens_are_invalid()


async def test_namespace_without_lobbies_needs_no_force(developer: Developer) -> None:
    game_id = await developer.game()
    await developer.good("delete_namespace", uuid4().hex, game_id=game_id, namespace_id="staging")
    listed = (await developer.good("list_namespaces", game_id=game_id))["namespaces"]
    assert [one["name_id"] for one in listed] == ["prod"]


async def test_game_is_deleted_with_everything_in_it(
    arena: Arena, developer: Developer, records: Records, full_service: FullService
) -> None:
    name_id = (await developer.good("get_game", **arena.game))["game"]["name_id"]
    token = (await developer.good("create_game_token", **arena.game))["token"]
    picture: dict[str, Any] = {"path": "a.png", "content_length": len(png())}
    logo = await developer.good("prepare_logo", **arena.game, **picture)
    assert (await put(logo["presigned_request"], png())).status_code == 200
    await developer.good("complete_logo", **arena.game, upload_id=logo["upload_id"])
    await developer.good("prepare_avatar", **arena.game, **picture)
    of_game = Developer(full_service, developer.client, token)
    assert await of_game.code("delete_game", **arena.game, force=True) == "FORBIDDEN"
    assert await developer.code("delete_game", **arena.game) == "IN_USE"
    key = uuid4().hex
    index = (await developer.good("get_game", **arena.game))["watch"]["index"]
    watch = asyncio.ensure_future(developer.call("get_game", **arena.game, watch_index=index))
    assert await developer.good("delete_game", key, **arena.game, force=True) == {}
    assert (await watch).code == "GAME_NOT_FOUND"
    await arena.tokens_are_invalid()
    assert await of_game.code("inspect_token") in GONE
    assert await developer.good("delete_game", key, **arena.game, force=True) == {}
    assert await developer.code("delete_game", **arena.game) == "GAME_NOT_FOUND"
    await nothing_remains(records)
    kept = full_service.data_dir / "control" / "objects" / "kept" / logo["upload_id"]
    assert not any(path.is_file() for path in kept.glob("*"))
    again = await developer.game(name_id=name_id)
    assert again != arena.game_id
