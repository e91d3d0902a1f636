"""Tokens that are over, of every kind that ends. What no operation makes, an end in the past, is written into the
records of the running service by its own statements, or signed with its own keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from pyservice.auth import keyring
from pyservice.control.timestamps import now_ms
from pyservice.dataplane import engine
from pyservice.storage.database import open_database
from tests.contract.areas.control import game_token, public_token, service_token
from tests.contract.scene import Scene, place
from tests.control.namespace_scenario import Records

_PROD: Final = {"namespace_id": "prod"}

Made = TypeVar("Made")


# Revoked ------------------------------------------------------------------------------------------


def _revoked(scene: Scene, token: Any, slug: str, **path: str) -> str:
    scene.good(slug, path={**path, "token_id": token["token_id"]})
    return str(token["token"])


@place("revoked pub")
def _(scene: Scene) -> str:
    return _revoked(scene, public_token(scene), "revoke_namespace_token")


@place("revoked env")
def _(scene: Scene) -> str:
    return _revoked(scene, service_token(scene), "revoke_namespace_token")


@place("revoked dev")
def _(scene: Scene) -> str:
    token = scene.good("create_development_token")
    return _revoked(scene, token, "revoke_namespace_token")


@place("revoked cloud")
def _(scene: Scene) -> str:
    return _revoked(scene, game_token(scene), "revoke_group_token")


# Expired: one of each kind for all scenes, which nothing can bring back -----------------------------


@place("expired cloud")
def _(scene: Scene) -> str:
    def made() -> str:
        identity_id = scene.good("inspect_token")["identity_id"]

        async def add(records: Records) -> str:
            return (await records.cloud_token(identity_id, expires_ms=now_ms() - 1))[0]

        return _recorded(scene, add)

    return scene.world.once("expired cloud", made)


@place("expired env")
def _(scene: Scene) -> str:
    def made() -> str:
        namespace_id = _namespace_id(scene)
        token = _recorded(
            scene, lambda records: records.environment_token(namespace_id, now_ms() - 1)
        )
        # The data plane hears of it with the next change.
        scene.good("create_service_token", path={"environment_id": "prod"})
        return token

    return scene.world.once("expired env", made)


@place("expired dev")
def _(scene: Scene) -> str:
    def made() -> str:
        namespace = UUID(_namespace_id(scene)).bytes
        return _signed(
            scene, lambda keys: keys.development_token(namespace, uuid4().bytes, now_ms() - 1)
        )

    return scene.world.once("expired dev", made)


@place("expired lobby")
def _(scene: Scene) -> str:
    """Of a lobby that the service does not know: one that ended long ago."""

    def attach(keys: engine.Engine) -> str:
        _, token, _ = keys._native.attach(
            *(bytes(16), bytes(16), "duel", "local", []),
            max_players=(2, 2, 2),
            player_token_ttl_ms=5_000,
            heartbeat_timeout_ms=0,
            heartbeat_grace_ms=0,
            is_join_enabled=True,
            create_ts_ms=0,
            lobby_count_max=1,
        )
        return str(token)

    return scene.world.once("forgotten lobby", lambda: _signed(scene, attach))


def _namespace_id(scene: Scene) -> str:
    return str(scene.good("get_namespace", path=_PROD)["namespace"]["namespace_id"])


def _recorded(scene: Scene, add: Callable[[Records], Awaitable[Made]]) -> Made:
    """What `add` answers, given the records under the running service's feet."""

    async def work() -> Made:
        database = open_database(scene.world.database_url, scene.service.data_dir / "control")
        try:
            return await add(Records(database))
        finally:
            await database.close()

    return asyncio.run(work())


def _signed(scene: Scene, make: Callable[[engine.Engine], str]) -> str:
    """What `make` answers, given another engine with the service's keys and nothing else of it."""

    async def work() -> str:
        elsewhere = engine.open_engine(
            None, keyring.load(scene.service.data_dir), engine.EngineLimits()
        )
        try:
            return make(elsewhere)
        finally:
            await elsewhere.close()

    return asyncio.run(work())
