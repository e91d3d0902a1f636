"""Trials of versions: a lobby of a version that no namespace runs, from its start to its end."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.control.service_fixtures import service_fixture
from tests.support import game_programs
from tests.support.full_service import Developer, eventually
from tests.support.lobby_game import Game

pytestmark = pytest.mark.anyio

MUTE = {"docker": {"env": {"PLAY": "mute"}}}

full_service = service_fixture("module", runtime=game_programs.SETTINGS, empty_lobby_grace_ms=200)


class TrialGame(Game):
    """A game. Its namespace `prod` runs a version with the mode `duel`."""

    async def start(self, version_id: str, game_mode: str = "duel", **fields: Any) -> str:
        response = await self.developer.good(
            "start_trial", **self.trial(version_id, game_mode, **fields)
        )
        return str(response["lobby_id"])

    def trial(self, version_id: str, game_mode: str = "duel", **fields: Any) -> dict[str, Any]:
        place = {"game_id": self.game_id, "namespace_id": "prod"}
        return {**place, "version_id": version_id, "game_mode": game_mode, **fields}

    async def ready(self, lobby_id: str) -> Any:
        async def ready_record() -> Any:
            record = await self.record(lobby_id)
            assert record is None or record["state"] != "failed", record
            return record if record and "ready_ts" in record else None

        return await eventually(ready_record)

    async def end(self, lobby_id: str) -> Any:
        await self.developer.good("detach", game_id=self.game_id, lobby_id=lobby_id)
        return await self.over(lobby_id)


@pytest.fixture
async def game(developer: Developer) -> TrialGame:
    game = TrialGame(developer, await developer.game())
    await game.deploy(duel={})
    return game


@pytest.mark.full
async def test_trial_starts_while_the_namespace_runs_another_version(game: TrialGame) -> None:
    version_id = await game.version("2.0.0", duel={}, royale={})
    lobby_id = await game.start(version_id, "royale")
    record = await game.ready(lobby_id)
    assert (record["version_id"], record["publicity"], record["is_trial"]) == (
        version_id,
        "private",
        True,
    )
    assert record["is_draining"] is False
    variables = await game.variables(lobby_id)
    assert (variables["HOSTING_GAME_MODE"], variables["HOSTING_VERSION_ID"]) == (
        "royale",
        version_id,
    )
    record = await game.end(lobby_id)
    assert (record["state"], record["is_trial"]) == ("stopped", True)
    # It is no lobby of the namespace: nothing drains, and find starts a lobby of the old version.
    found = (await game.find_lobby("duel"))["lobby"]["lobby_id"]
    assert "is_trial" not in await game.record(found)


@pytest.mark.full
async def test_find_join_list_and_statistics_never_show_a_trial(game: TrialGame) -> None:
    client, token = game.developer.client, game.public_token
    current = await game.version("1.0.1", duel={"max_drain_ms": 1000})
    await game.set_version(current)
    other = await game.version("2.0.0", duel={}, royale={})
    trials = [await game.start(current), await game.start(other, "royale")]
    for lobby_id in trials:
        await game.ready(lobby_id)
        joined = await client.call("join", {"lobby_id": lobby_id}, token=token)
        assert joined.code == "MATCHMAKER_LOBBY_NOT_FOUND"
    listed = await client.call("list", {}, token=token)
    assert listed.body["lobbies"] == []
    statistics = (await client.call("statistics", {}, token=token)).body
    assert (statistics["player_count"], list(statistics["game_modes"])) == (0, ["duel"])
    answer = await game.find("duel", prevent_auto_create_lobby=True)
    assert answer.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    # The change of the version ends the lobby of players, and leaves both trials alone.
    found = (await game.find_lobby("duel"))["lobby"]["lobby_id"]
    await game.set_version(other)
    await game.over(found)
    for lobby_id in trials:
        assert (await game.record(lobby_id))["state"] == "running"
        await game.end(lobby_id)


@pytest.mark.full
async def test_trial_ends_by_its_timeout(game: TrialGame) -> None:
    version_id = await game.version("2.0.0", duel=MUTE)
    record = await game.over(await game.start(version_id, timeout_ms=1500))
    assert (record["state"], record["failure"]) == ("failed", "START_TIMEOUT")


@pytest.mark.full
async def test_failed_trial_says_why(game: TrialGame) -> None:
    version_id = await game.version("2.0.0", ("python3", "-S", "absent.py"), duel={})
    lobby_id = await game.start(version_id)
    record = await game.over(lobby_id)
    assert (record["state"], record["failure"]) == ("failed", "EXITED")
    assert "exited with code 2" in await game.problem(lobby_id)


async def test_wrong_requests_name_their_problem(game: TrialGame) -> None:
    version_id = await game.version("2.0.0", duel={})
    attached = await game.developer.version(game.game_id)
    call = game.developer.call
    refused = await call("start_trial", **game.trial(version_id, "duell"))
    assert (refused.code, refused.errors) == ("VALIDATION_FAILED", (("game_mode", "not-found"),))
    refused = await call("start_trial", **game.trial(attached, "arena"))
    assert (refused.code, refused.errors) == ("VALIDATION_FAILED", (("game_mode", "not-allowed"),))
    refused = await call("start_trial", **game.trial(version_id, timeout_ms=999))
    assert refused.errors == (("timeout_ms", "too-low"),)
    assert await game.developer.code("start_trial", **game.trial(str(uuid4()))) == (
        "VERSION_NOT_FOUND"
    )
    unknown = {**game.trial(version_id), "namespace_id": "absent"}
    assert await game.developer.code("start_trial", **unknown) == "NAMESPACE_NOT_FOUND"
    other = await game.developer.game()
    foreign = {**game.trial(version_id), "game_id": other}
    assert await game.developer.code("start_trial", **foreign) == "VERSION_NOT_FOUND"


@pytest.mark.full
async def test_repeated_request_starts_one_trial(game: TrialGame) -> None:
    version_id = await game.version("2.0.0", duel={})
    fields = game.trial(version_id)
    key = str(uuid4())
    first, second = [await game.developer.good("start_trial", key, **fields) for _ in range(2)]
    assert first == second
    await game.end(first["lobby_id"])


@pytest.mark.full
async def test_trial_counts_for_the_limit_of_lobbies(game: TrialGame) -> None:
    target = {"game_id": game.game_id, "namespace_id": "prod"}
    await game.developer.good("set_mm_config", **target, lobby_count_max=1, max_players=16)
    version_id = await game.version("2.0.0", duel={})
    lobby_id = await game.start(version_id)
    assert await game.developer.code("start_trial", **game.trial(version_id)) == (
        "MATCHMAKER_TOO_MANY_LOBBIES"
    )
    assert (await game.find("duel")).code == "MATCHMAKER_TOO_MANY_LOBBIES"
    in_use = await game.developer.code(
        "delete_version", game_id=game.game_id, version_id=version_id
    )
    assert in_use == "IN_USE"
    await game.ready(lobby_id)
    await game.end(lobby_id)
    assert (await game.find("duel")).code == "OK"


async def test_version_is_set_only_if_the_namespace_runs_the_expected_one(
    game: TrialGame,
) -> None:
    target = {"game_id": game.game_id, "namespace_id": "prod"}
    first = (await game.developer.good("get_namespace", **target))["namespace"]["version_id"]
    second, third = [await game.version(name, duel={}) for name in ("2.0.0", "3.0.0")]
    change = {**target, "version_id": second, "expected_version_id": first}
    await game.developer.good("set_version", **change)
    await game.developer.good("set_version", **change)
    late = await game.developer.call("set_version", **{**change, "version_id": third})
    assert (late.code, late.metadata["version_id"]) == ("VERSION_CHANGED", second)
    namespace = (await game.developer.good("get_namespace", **target))["namespace"]
    assert namespace["version_id"] == second
