"""Lobbies with processes: find, connection, records, logs and exports."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.control.service_fixtures import service_fixture
from tests.support import game_programs
from tests.support.full_service import Developer, eventually
from tests.support.lobby_game import TIER, Game, echoed
from tests.support.loopback import OWN_ADDRESS

pytestmark = pytest.mark.anyio

ALIASES = {
    "THEIR_LOBBY": "HOSTING_LOBBY_ID",
    "THEIR_PASS": "HOSTING_LOBBY_TOKEN",
    "THEIR_PORT": "PORT_GAME",
    "THEIR_SERVER": "HOSTING_SERVER_ID",
    "HOSTING_REGION_ID": "HOSTING_LOBBY_ID",
}
"""The last two aliases have no effect: a lobby has no server id and keeps its region."""

MISSING_MODULE = (
    "The module no_such_module is missing: add it to the build (build.python_requirements)"
)


full_service = service_fixture(
    "module", runtime=game_programs.SETTINGS, empty_lobby_grace_ms=200, lobby_env_aliases=ALIASES
)


@pytest.fixture
async def game(developer: Developer) -> Game:
    return Game(developer, await developer.game())


async def test_find_starts_a_process_and_connects_its_player(game: Game) -> None:
    version_id = await game.deploy(duel={"taggable": True})
    began_ms = time.time() * 1000
    placement = await game.find_lobby("duel", tags={"map": "sea"})
    port = placement["ports"]["game"]
    assert 26_000 <= port["port"] < 32_000
    assert await asyncio.to_thread(echoed, port) == b"hello"
    lobby_id = placement["lobby"]["lobby_id"]

    every = await game.variables(lobby_id)
    variables = {name: one for name, one in every.items() if not name.startswith("THEIR_")}
    assert variables.pop("PORT") == variables.pop("PORT_GAME") != str(port["port"])
    assert variables.pop("HOSTING_API_URL").startswith(f"http://{OWN_ADDRESS}:")
    assert variables.pop("HOSTING_GRPC_ADDRESS").startswith(f"{OWN_ADDRESS}:")
    assert variables.pop("HOSTING_NAMESPACE_ID")
    expected = {
        "LOBBY_ID": lobby_id,
        "VERSION_ID": version_id,
        "NAMESPACE_NAME": "prod",
        "GAME_MODE": "duel",
        "REGION_ID": "local",
        "LOBBY_TAGS": '{"map": "sea"}',
        "MAX_PLAYERS": "4",
        "MAX_PLAYERS_DIRECT": "4",
        "MAX_PLAYERS_PARTY": "4",
        "CPU": "375",
        "MEMORY": "256",
        "BIND_ADDRESS": "127.0.0.1",
    }
    assert variables == {f"HOSTING_{name}": one for name, one in expected.items()}
    again = await game.find_lobby("duel")
    assert again["lobby"]["lobby_id"] == lobby_id

    lines = await game.csv("export_lobby_logs", lobby_id=lobby_id, stream="std_out")
    assert list(lines[0]) == ["timestamp", "stream", "line"]
    assert [line["line"] for line in lines][1:3] == ["'=1+1", "begins"]
    errors = await game.csv("export_lobby_logs", lobby_id=lobby_id, stream="std_err")
    assert [line["line"] for line in errors] == ["to err"]

    query = {"game_id": game.game_id, "lobby_id": lobby_id}
    text = await game.developer.good("get_lobby_logs", **query, format="text")
    words = [line.split(" ", 2)[1:] for line in text["text"].splitlines()]
    assert ["std_out", "begins"] in words
    assert ["std_err", "to err"] in words
    of_errors = {"format": "text", "stream": "std_err"}
    text = await game.developer.good("get_lobby_logs", **query, **of_errors)
    assert text["text"].split(" ", 1)[1:] == ["std_err to err\n"]
    wrong = await game.developer.call("get_lobby_logs", **query)
    assert (wrong.code, list(wrong.errors)) == ("QUERY_INVALID", [("stream", "required")])
    of_text = {"format": "text", "watch_index": "0"}
    wrong = await game.developer.call("get_lobby_logs", **query, **of_text)
    assert (wrong.code, list(wrong.errors)) == ("QUERY_INVALID", [("watch_index", "not-allowed")])

    now_ms = int(time.time() * 1000)
    span = {"query_start": int(began_ms) - 1_000, "query_end": now_ms}
    [row] = await game.csv("export_lobby_history", **span)
    assert (row["lobby_id"], row["version_name"], row["stop_ts"]) == (lobby_id, "1.0.0", "")
    assert 0 <= int(row["query_uptime_ms"]) <= int(row["total_uptime_ms"])
    record = await game.record(lobby_id)
    assert record["create_ts"] <= record["start_ts"] <= record["ready_ts"]


@pytest.mark.full
async def test_export_of_a_running_lobby_matches_its_end(game: Game) -> None:
    await game.deploy(duel={})
    reversed_span: dict[str, Any] = {"game_id": game.game_id, "query_start": 2, "query_end": 1}
    refusal = await game.developer.call("export_lobby_history", **reversed_span)
    assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", (("query_end", "too-low"),))
    lobby_id = (await game.find_lobby("duel"))["lobby"]["lobby_id"]
    # A read by id waits for the newest facts. An export does not.
    record, live = await game.record(lobby_id), await game.history(lobby_id)
    assert record["create_ts"] < record["start_ts"]
    assert (live["tier"], live["start_ts"], live["stop_ts"]) == (TIER, record["start_ts"], "")
    await game.developer.good("detach", game_id=game.game_id, lobby_id=lobby_id)
    record = await game.over(lobby_id)
    ended_lobby = await game.history(lobby_id)
    stopped = record["status"]["stopped"]
    assert (ended_lobby["tier"], ended_lobby["start_ts"]) == (TIER, live["start_ts"])
    assert (ended_lobby["start_ts"], ended_lobby["stop_ts"]) == (
        record["start_ts"],
        stopped["stop_ts"],
    )
    assert int(ended_lobby["total_uptime_ms"]) >= int(live["total_uptime_ms"])


@pytest.mark.full
async def test_process_that_never_started_has_no_uptime(game: Game) -> None:
    await game.deploy(command=["no-such-program"], duel={})
    assert (await game.find("duel")).code == "MATCHMAKER_LOBBY_START_FAILED"
    lobby_id = await game.first()

    async def failed() -> Any:
        record = await game.record(lobby_id)
        return record if record.get("failure") == "EXEC_FAILED" else None

    record = await eventually(failed)
    assert "start_ts" not in record
    assert record["problem"].startswith("no-such-program is not in any of ")
    row = await game.history(lobby_id)
    assert (row["tier"], row["start_ts"], row["total_uptime_ms"]) == (TIER, "", "0")


@pytest.mark.full
async def test_environment_has_the_operator_variable_names(game: Game) -> None:
    await game.deploy(duel={})
    lobby_id = (await game.find_lobby("duel"))["lobby"]["lobby_id"]
    variables = await game.variables(lobby_id)
    aliased = {name: value for name, value in variables.items() if name.startswith("THEIR_")}
    client, token = game.developer.client, aliased.pop("THEIR_PASS")
    assert aliased == {"THEIR_LOBBY": lobby_id, "THEIR_PORT": variables["PORT_GAME"]}
    assert variables["HOSTING_REGION_ID"] == "local"
    assert (await client.call("heartbeat", {}, token=token)).code == "OK"


@pytest.mark.full
async def test_unused_lobby_is_stopped_and_recorded(game: Game) -> None:
    await game.deploy(brief={"player_token_ttl": 5_000})
    placement = await game.find_lobby("brief")
    lobby_id = placement["lobby"]["lobby_id"]
    record = await game.over(lobby_id)
    assert record["status"]["stopped"]["failed"] is False
    assert "failure" not in record
    [row] = await game.csv("export_lobby_history", query_start=0, query_end=int(time.time() * 1000))
    assert (row["lobby_id"], row["tier"], row["stop_reason"]) == (lobby_id, TIER, "stopped")

    async def refused() -> bool:
        try:
            return await asyncio.to_thread(echoed, placement["ports"]["game"]) == b""
        except OSError:
            return True

    await eventually(refused)
    assert (await game.logs(lobby_id))[1:3] == ["=1+1", "begins"], "logs stay"


@pytest.mark.full
async def test_early_process_exit_fails_the_find(game: Game) -> None:
    await game.deploy(broken={"docker": {"env": {"PLAY": "exit:3"}}})
    answer = await game.find("broken")
    assert answer.code == "MATCHMAKER_LOBBY_START_FAILED"
    record = await game.over(await game.first())
    stopped = record["status"]["stopped"]
    assert (stopped["failed"], stopped["exit_code"], record["state"]) == (True, 3, "failed")
    assert record["failure"] == "EXITED"
    sentence = "The program exited with code 3 before the lobby was ready."
    assert await game.problem(record["lobby_id"]) == sentence
    lobby_id = record["lobby_id"]
    assert await game.logs(lobby_id, "service") == [sentence]
    [row] = await game.csv("export_lobby_logs", lobby_id=lobby_id, stream="service")
    assert (row["stream"], row["line"]) == ("service", sentence)
    query = {"game_id": game.game_id, "lobby_id": lobby_id, "format": "text"}
    text = (await game.developer.good("get_lobby_logs", **query))["text"]
    lines = [line.split(" ", 2)[1:] for line in text.splitlines()]
    assert lines[-2:] == [["std_out", "begins"], ["service", sentence]]
    assert sentence not in str(answer), "players get no cause"


@pytest.mark.full
async def test_program_without_a_module_names_it(game: Game) -> None:
    await game.deploy(command=["python3", "-S", "-c", "import no_such_module"], duel={})
    assert (await game.find("duel")).code == "MATCHMAKER_LOBBY_START_FAILED"
    lobby_id = await game.first()
    assert await game.problem(lobby_id) == MISSING_MODULE
    assert await game.logs(lobby_id, "service") == [MISSING_MODULE]


@pytest.mark.full
async def test_idle_lobbies_are_started_without_a_request(game: Game) -> None:
    await game.deploy(ready={"idle_lobbies": {"min": 1, "max": 1}})

    async def listed() -> Any:
        client = game.developer.client
        answer = await client.call("list", {}, token=game.public_token)
        return answer.body["lobbies"] if answer.code == "OK" else None

    [lobby] = await eventually(listed)
    placement = await game.find_lobby("ready", prevent_auto_create_lobby=True)
    assert placement["lobby"]["lobby_id"] == lobby["lobby_id"]

    async def another() -> bool:
        return len(await listed() or ()) == 2

    await eventually(another)


@pytest.mark.full
async def test_new_lobby_is_readable_at_once(game: Game) -> None:
    """The control plane must know a lobby that the data plane created a moment ago."""
    await game.deploy(static={})
    for port in range(9_001, 9_011):
        fields = {"game_id": game.game_id, "namespace_id": "prod", "game_mode": "static"}
        ports = {"game": {"address": "127.0.0.1", "port": port}}
        attached = await game.developer.good("attach", **fields, ports=ports)
        lobby_id = attached["lobby_id"]
        query = {"game_id": game.game_id, "lobby_id": lobby_id}
        assert await game.record(lobby_id) is not None
        for name in ("get_lobby_logs", "export_lobby_logs"):
            answer = await game.developer.call(name, **query, stream="std_out")
            assert answer.code == "OK", f"{name}: {answer}"
        await game.developer.good("detach", **query)


@pytest.mark.full
async def test_deleted_lobby_is_stopped_in_order(game: Game) -> None:
    await game.deploy(duel={})
    placement = await game.find_lobby("duel")
    lobby_id = placement["lobby"]["lobby_id"]
    first = await game.developer.good("detach", game_id=game.game_id, lobby_id=lobby_id)
    repeat = await game.developer.good("detach", game_id=game.game_id, lobby_id=lobby_id)
    assert (first["did_remove"], repeat["did_remove"]) == (True, False)
    record = await game.over(lobby_id)
    assert record["status"]["stopped"]["exit_code"] == 128 + 15
    assert record["status"]["stopped"]["failed"] is False
    late = await game.developer.good("detach", game_id=game.game_id, lobby_id=lobby_id)
    assert late["did_remove"] is False


@pytest.mark.full
async def test_exit_code_is_recorded_after_the_lobby_ended(game: Game) -> None:
    await game.deploy(quiet={"heartbeat_timeout": 1_000})
    lobby_id = (await game.find_lobby("quiet"))["lobby"]["lobby_id"]
    assert (await game.over(lobby_id))["failure"] == "SILENT"

    async def exit_code_of() -> int:
        record = await game.record(lobby_id)
        return int(record["status"]["stopped"]["exit_code"])

    assert await eventually(exit_code_of) == 128 + 15
    assert (await game.record(lobby_id))["failure"] == "SILENT"
