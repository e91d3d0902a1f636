"""Lobbies with processes: find, connection, records, logs and exports."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import socket
import time
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests import programs
from tests.control.service_fixtures import service_fixture
from tests.control.test_builds import GameBackEnd
from tests.support.full_service import Developer, ServiceResponse, eventually
from tests.support.loopback import OWN_ADDRESS

pytestmark = pytest.mark.anyio

TIER = "basic-1d8"
ALIASES = {
    "THEIR_LOBBY": "HOSTING_LOBBY_ID",
    "THEIR_PASS": "HOSTING_LOBBY_TOKEN",
    "THEIR_PORT": "PORT_GAME",
    "THEIR_SERVER": "HOSTING_SERVER_ID",
    "HOSTING_REGION_ID": "HOSTING_LOBBY_ID",
}
"""The last two aliases have no effect: a lobby has no server id and keeps its region."""
REPORT_SCRIPT = b"""
import json, os, sys
names = [name for name in os.environ if name.startswith(("HOSTING_", "PORT", "THEIR_"))]
print(json.dumps({name: os.environ[name] for name in names if "TOKEN" not in name}), flush=True)
print("=1+1", flush=True)
print("to err", file=sys.stderr, flush=True)
os.execv(sys.executable, [sys.executable, "-S", "server.py"])
"""
COMMAND = ("python3", "-S", "report.py")


full_service = service_fixture(
    "module", runtime=programs.SETTINGS, empty_lobby_grace_ms=200, lobby_env_aliases=ALIASES
)


class Game:
    def __init__(self, developer: Developer, game_id: str) -> None:
        self.developer = developer
        self.game_id = game_id
        self.public_token = ""

    async def deploy(
        self, name: str = "1.0.0", command: Sequence[str] = COMMAND, **modes: Any
    ) -> str:
        token = await self.developer.service_token(self.game_id)
        back_end_client = GameBackEnd(self.developer, self.game_id, token)
        archive = programs.server_archive(*command, **{"report.py": REPORT_SCRIPT})
        build_id = await back_end_client.build(archive)
        docker = {"image_id": build_id, "ports": {"game": {"protocol": "tcp"}}}
        settings = {"tier": TIER, "max_players": 4}
        entries = {
            mode: {**settings, **values, "docker": {**docker, **values.get("docker", {})}}
            for mode, values in modes.items()
        }
        config = {"matchmaker": {"game_modes": entries}}
        version_id = await self.developer.version(self.game_id, config, name)
        target = {"game_id": self.game_id, "namespace_id": "prod"}
        await self.developer.good("set_version", **target, version_id=version_id)
        self.public_token = await self.developer.public_token(self.game_id)
        return version_id

    async def find(self, mode: str, **fields: Any) -> ServiceResponse:
        client = self.developer.client
        return await client.call("find", {"game_modes": [mode], **fields}, token=self.public_token)

    async def find_lobby(self, mode: str, **fields: Any) -> Any:
        answer = await self.find(mode, **fields)
        assert answer.code == "OK", answer
        return answer.body

    async def record(self, lobby_id: str) -> Any:
        answer = await self.developer.call(
            "get_lobby_record", game_id=self.game_id, namespace_id="prod", lobby_id=lobby_id
        )
        return answer.body["lobby"] if answer.code == "OK" else None

    async def over(self, lobby_id: str) -> Any:
        async def ended_record() -> Any:
            record = await self.record(lobby_id)
            return record if record and "stopped" in record["status"] else None

        return await eventually(ended_record)

    async def first(self) -> str:
        async def listed() -> Any:
            target = {"game_id": self.game_id, "namespace_id": "prod"}
            return (await self.developer.good("list_lobby_records", **target))["lobbies"]

        return str((await eventually(listed))[0]["lobby_id"])

    async def logs(self, lobby_id: str, stream: str = "std_out") -> list[str]:
        answer = await self.developer.good(
            "get_lobby_logs", game_id=self.game_id, lobby_id=lobby_id, stream=stream
        )
        lines: list[str] = answer["lines"]
        return lines

    async def variables(self, lobby_id: str) -> dict[str, str]:
        """Returns the environment of the lobby's process. A lobby can be ready before its log is read."""

        async def written() -> list[str]:
            return await self.logs(lobby_id)

        variables: dict[str, str] = json.loads((await eventually(written))[0])
        return variables

    async def csv(self, slug: str, **fields: Any) -> list[dict[str, str]]:
        url = (await self.developer.good(slug, game_id=self.game_id, **fields))["url"]
        answer = httpx.get(url)
        assert answer.headers["content-type"].startswith("text/csv")
        assert "attachment" in answer.headers["content-disposition"]
        assert answer.text.count("\r\n") == answer.text.count("\n")
        return list(csv.DictReader(io.StringIO(answer.text)))

    async def history(self, lobby_id: str) -> dict[str, str]:
        end_ms = int(time.time() * 1000)
        rows = await self.csv("export_lobby_history", query_start=0, query_end=end_ms)
        [row] = [row for row in rows if row["lobby_id"] == lobby_id]
        return row


@pytest.fixture
async def game(developer: Developer) -> Game:
    return Game(developer, await developer.game())


def echoed(port: Any) -> bytes:
    with socket.create_connection((port["hostname"], port["port"]), 5) as connection:
        connection.sendall(b"hello")
        return connection.recv(100)


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
    }
    assert variables == {f"HOSTING_{name}": one for name, one in expected.items()}
    again = await game.find_lobby("duel")
    assert again["lobby"]["lobby_id"] == lobby_id

    lines = await game.csv("export_lobby_logs", lobby_id=lobby_id, stream="std_out")
    assert list(lines[0]) == ["timestamp", "stream", "line"]
    assert [line["line"] for line in lines][1:3] == ["'=1+1", "begins"]
    errors = await game.csv("export_lobby_logs", lobby_id=lobby_id, stream="std_err")
    assert [line["line"] for line in errors] == ["to err"]

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

    assert "start_ts" not in await eventually(failed)
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
    assert (stopped["failed"], stopped["exit_code"]) == (True, 3)
    assert record["failure"] == "EXITED"


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
