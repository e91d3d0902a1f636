"""Expired and revoked tokens of every kind.

No operation creates a token with an end in the past. The module writes such tokens into the
records, or signs them with the keys of the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from pyservice.auth import keyring
from pyservice.dataplane import engine
from pyservice.storage.database import open_database
from pyservice.timestamps import now_ms
from tests.contract.areas.control_plane import game_token, public_token, service_token
from tests.contract.scenario import Scenario, placeholder
from tests.support.namespace_scenario import Records

_PROD: Final = {"namespace_id": "prod"}

Made = TypeVar("Made")


def _revoked(scenario: Scenario, token: Any, slug: str, **path: str) -> str:
    scenario.good(slug, path={**path, "token_id": token["token_id"]})
    return str(token["token"])


@placeholder("revoked pub")
def _(scenario: Scenario) -> str:
    return _revoked(scenario, public_token(scenario), "revoke_namespace_token")


@placeholder("revoked env")
def _(scenario: Scenario) -> str:
    return _revoked(scenario, service_token(scenario), "revoke_namespace_token")


@placeholder("revoked dev")
def _(scenario: Scenario) -> str:
    token = scenario.good("create_development_token")
    return _revoked(scenario, token, "revoke_namespace_token")


@placeholder("revoked cloud")
def _(scenario: Scenario) -> str:
    return _revoked(scenario, game_token(scenario), "revoke_group_token")


@placeholder("expired cloud")
def _(scenario: Scenario) -> str:
    def create() -> str:
        identity_id = scenario.good("inspect_token")["identity_id"]

        async def add(records: Records) -> str:
            return (await records.cloud_token(identity_id, expires_ms=now_ms() - 1))[0]

        return _recorded(scenario, add)

    return scenario.served_game.once("expired cloud", create)


@placeholder("expired env")
def _(scenario: Scenario) -> str:
    def create() -> str:
        namespace_id = _namespace_id(scenario)
        token = _recorded(
            scenario, lambda records: records.service_token(namespace_id, now_ms() - 1)
        )
        # The next change sends the expired token to the data plane.
        scenario.good("create_service_token", path={"environment_id": "prod"})
        return token

    return scenario.served_game.once("expired env", create)


@placeholder("expired dev")
def _(scenario: Scenario) -> str:
    def create() -> str:
        namespace = UUID(_namespace_id(scenario)).bytes
        return _signed(
            scenario, lambda keys: keys.development_token(namespace, uuid4().bytes, now_ms() - 1)
        )

    return scenario.served_game.once("expired dev", create)


@placeholder("expired lobby")
def _(scenario: Scenario) -> str:
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

    return scenario.served_game.once("forgotten lobby", lambda: _signed(scenario, attach))


def _namespace_id(scenario: Scenario) -> str:
    return str(scenario.good("get_namespace", path=_PROD)["namespace"]["namespace_id"])


def _recorded(scenario: Scenario, add: Callable[[Records], Awaitable[Made]]) -> Made:
    async def work() -> Made:
        database = open_database(
            scenario.served_game.database_url, scenario.service.data_dir / "control"
        )
        try:
            return await add(Records(database))
        finally:
            await database.close()

    return asyncio.run(work())


def _signed(scenario: Scenario, make: Callable[[engine.Engine], str]) -> str:
    async def work() -> str:
        elsewhere = engine.open_engine(
            None, keyring.load(scenario.service.data_dir), engine.EngineLimits()
        )
        try:
            return make(elsewhere)
        finally:
            await elsewhere.close()

    return asyncio.run(work())
