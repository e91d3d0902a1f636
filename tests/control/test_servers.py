"""Dynamic servers with real processes behind a real edge-guard."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import game_programs
from tests.support.full_service import Developer, FullService, ServiceClient, eventually, running
from tests.support.server_back_end import (
    ServerBackEnd,
    echoed_by_server,
    free_host_port,
    on_host,
    open_back_end,
    process_of,
    reached,
    without_usage,
)
from tests.support.upload_files import tar

pytestmark = pytest.mark.anyio


@pytest.fixture
async def back_end(
    full_service: FullService, client: ServiceClient
) -> AsyncIterator[ServerBackEnd]:
    async with open_back_end(full_service, client.name) as back_end:
        yield back_end


async def test_server_is_created_reached_listed_and_destroyed(back_end: ServerBackEnd) -> None:
    server = await back_end.create(tags={"mode": "duel"}, lifecycle={"kill_timeout": 5_000})
    assert server["status"] in ("created", "starting", "running")
    port = server["network"]["ports"]["game"]
    assert 26_000 <= port["public_port"] < 32_000
    assert port["routing"] == {"edge_guard": {}}
    record = await back_end.until(server["id"], "running")
    assert record["started_at"] >= record["created_at"]
    assert record["tags"] == {"mode": "duel"}
    await eventually(lambda: reached(record))
    await back_end.good("destroy_server", server_id=server["id"])
    ended_server = await back_end.until(server["id"], "destroyed")
    assert ended_server["exit_code"] == 128 + 15
    assert ended_server["destroyed_at"] >= ended_server["started_at"]
    assert "failure" not in ended_server
    await back_end.good("destroy_server", server_id=server["id"])
    assert await back_end.get(server["id"]) == ended_server, "a repetition changes nothing"


@pytest.mark.full
async def test_process_environment_is_exact(back_end: ServerBackEnd) -> None:
    script = "import os\nfor name in sorted(os.environ): print(f'{name}={os.environ[name]}')\n"
    words = ("python3", "-S", "report.py", "--at", "$(PORT)", "$$(PORT)", "$(NOBODY)")
    report = f"import sys\nprint(sys.argv[1:])\n{script}".encode()
    build_id = await back_end.build(game_programs.server_archive(*words, **{"report.py": report}))
    variables = {"arguments": ["--map", "$(MAP)"], "environment": {"MAP": "sea"}}
    server = await back_end.create(runtime={"build": build_id, **variables})
    ended_server = await back_end.until(server["id"], "destroyed")
    assert ended_server["exit_code"] == 0
    lines = (await back_end.lines(server["id"]))["lines"]
    values = dict(line.split("=", 1) for line in lines[1:])
    number = values["PORT_GAME"]
    assert lines[0] == str(["--at", number, "$(PORT)", "$(NOBODY)", "--map", "sea"])
    assert 12_000 <= int(number) < 20_000
    expected = {
        "PORT": number,
        "MAP": "sea",
        "HOSTING_REGION_ID": "local",
        "HOSTING_SERVER_ID": server["id"],
        "HOSTING_GAME_ID": back_end.game_id,
        "HOSTING_CPU": "100",
        "HOSTING_MEMORY": "128",
        "HOSTING_BIND_ADDRESS": "127.0.0.1",
    }
    assert {name: values[name] for name in expected} == expected
    service_names = {name for name in values if name.startswith("HOSTING_")}
    assert service_names == {
        *("HOSTING_API_URL", "HOSTING_GRPC_ADDRESS", "HOSTING_SERVER_ID", "HOSTING_GAME_ID"),
        *("HOSTING_ENVIRONMENT_ID", "HOSTING_REGION_ID", "HOSTING_CPU", "HOSTING_MEMORY"),
        "HOSTING_BIND_ADDRESS",
    }
    assert set(values) - service_names == {
        *("PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "LANG", "MAP", "PORT", "PORT_GAME"),
        *(name for name in ("LC_CTYPE",) if name in values),
    }


@pytest.mark.full
async def test_server_without_a_listener_has_a_problem(back_end: ServerBackEnd) -> None:
    build_id = await back_end.build(game_programs.server_archive("sleep", "1000"))
    server = await back_end.create(runtime={"build": build_id})

    async def problem() -> Any:
        return (await back_end.get(server["id"])).get("problem")

    assert re.fullmatch(r"Nothing listens at PORT_GAME=\d+\.", await eventually(problem))


@pytest.mark.full
async def test_exited_server_has_its_exit_code(back_end: ServerBackEnd) -> None:
    server = await back_end.create(runtime={"environment": {"PLAY": "exit:7"}})
    ended_server = await back_end.until(server["id"], "destroyed", "failed")
    assert (ended_server["status"], ended_server["exit_code"]) == ("destroyed", 7)
    assert (await back_end.lines(server["id"]))["lines"] == ["begins"]


@pytest.mark.full
async def test_server_without_a_module_names_it_in_its_problem(back_end: ServerBackEnd) -> None:
    words = ("python3", "-S", "-c", "import no_such_module")
    build_id = await back_end.build(game_programs.server_archive(*words))
    server = await back_end.create(runtime={"build": build_id})
    ended_server = await back_end.until(server["id"], "destroyed", "failed")
    assert (ended_server["status"], ended_server["exit_code"]) == ("destroyed", 1)
    sentence = (
        "The module no_such_module is missing: add it to the build (build.python_requirements)"
    )
    assert ended_server["problem"] == sentence
    assert (await back_end.lines(server["id"], "service"))["lines"] == [sentence]


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["sh", "-c", "head -c 64M /dev/zero >$HOME/big"],
            r"The scratch folder is full \(16 MiB\): .+",
        ),
        (
            ["python3", "-S", "-c", "import socket\nsocket.create_server(('127.0.0.1', 9999))"],
            r"The server may not bind this port: bind \$PORT_GAME, which is \d+",
        ),
    ],
    ids=["space", "bind"],
)
async def test_server_at_a_limit_has_a_problem(
    back_end: ServerBackEnd, command: list[str], expected: str
) -> None:
    manifest = {"command": command, "scratch_mb": 16, "env": {"PATH": game_programs.PYTHON_PATH}}
    build_id = await back_end.build(tar({"server.json": json.dumps(manifest).encode()}))
    server = await back_end.create(runtime={"build": build_id})
    ended_server = await back_end.until(server["id"], "destroyed")
    if ended_server["exit_code"] == 0:
        pytest.skip("no root, so that this user has no scratch folder with a limit")
    assert re.fullmatch(expected, ended_server["problem"])
    lines = (await back_end.lines(server["id"], "service"))["lines"]
    assert lines == [ended_server["problem"]]


@pytest.mark.full
async def test_server_that_cannot_run_has_a_reason(back_end: ServerBackEnd) -> None:
    build_id = await back_end.build(game_programs.server_archive("nothing-here"))
    server = await back_end.create(runtime={"build": build_id})
    ended_server = await back_end.until(server["id"], "failed")
    assert ended_server["failure"]["reason"] == "EXEC_FAILED"
    assert "nothing-here" in ended_server["failure"]["message"]
    assert "exit_code" not in ended_server


@pytest.mark.full
async def test_server_that_ignores_sigterm_is_killed(back_end: ServerBackEnd) -> None:
    server = await back_end.running(runtime={"environment": {"PLAY": "ignore-sigterm"}})
    await eventually(lambda: reached(server))
    await back_end.good("destroy_server", server_id=server["id"])
    assert (await back_end.get(server["id"]))["status"] == "stopping"
    shortened_ms = time.time() * 1000
    await back_end.good("destroy_server", server_id=server["id"], override_kill_timeout=100)
    ended_server = await back_end.until(server["id"], "destroyed")
    assert ended_server["exit_code"] == 128 + 9
    assert ended_server["destroyed_at"] - shortened_ms < 25_000


@pytest.mark.full
async def test_followed_log_loses_no_line(back_end: ServerBackEnd) -> None:
    script = b"import time\nfor number in range(2500): print(number, flush=True)\ntime.sleep(600)\n"
    archive = game_programs.server_archive("python3", "-S", "count.py", **{"count.py": script})
    build_id = await back_end.build(archive)
    server = await back_end.running(runtime={"build": build_id})
    first = await back_end.lines(server["id"])
    lines, index = first["lines"], first["watch"]["index"]
    while not lines or lines[-1] != "2499":
        page = await back_end.lines(server["id"], watch_index=index)
        assert len(page["lines"]) == len(page["timestamps"]) <= 1_000
        lines += page["lines"]
        index = page["watch"]["index"]
    begin = int(lines[0])
    assert lines == [str(number) for number in range(begin, 2500)]
    newest = await back_end.lines(server["id"])
    assert newest["lines"] == [str(number) for number in range(1500, 2500)]
    assert (await back_end.lines(server["id"], "std_err"))["lines"] == []


@pytest.mark.full
async def test_repeated_creation_returns_the_same_server(back_end: ServerBackEnd) -> None:
    first, again = await asyncio.gather(
        back_end.try_create("the-key-of-one"), back_end.try_create("the-key-of-one")
    )
    assert first.code == again.code == "OK"
    assert first.body["server"]["id"] == again.body["server"]["id"]
    back_end.server_ids.append(first.body["server"]["id"])
    other = await back_end.try_create("the-key-of-one", tags={"another": "message"})
    assert other.code == "IDEMPOTENCY_KEY_REUSED"
    assert len((await back_end.good("list_servers"))["servers"]) == 1


async def test_invalid_creation_reports_every_problem(back_end: ServerBackEnd) -> None:
    assert (await back_end.try_create(datacenter="nowhere")).code == "REGION_NOT_FOUND"
    incomplete = (await back_end.prepare(game_programs.server_archive()))["build"]["id"]
    ports = {
        "bridge": {"protocol": "tcp", "internal_port": 20_001, "routing": {"host": {}}},
        "web": {"protocol": "http", "routing": {"host": {}}},
        "low": {"protocol": "udp", "internal_port": 80, "routing": {"host": {}}},
    }
    runtime = {"build": incomplete, "environment": {"MAP": "sea", "HOSTING_SERVER_ID": "mine"}}
    refusal = await back_end.try_create(runtime=runtime, network={"ports": ports})
    assert refusal.code == "VALIDATION_FAILED"
    assert {path[-2:] for path in refusal.errors} == {
        ("build", "incomplete"),
        ("HOSTING_SERVER_ID", "not-allowed"),
        ("host", "not-allowed"),
        ("protocol", "not-allowed"),
        ("internal_port", "required"),
        ("internal_port", "not-allowed"),
    }
    large = await back_end.try_create(resources={"cpu": 64_000, "memory": 524_288})
    assert large.code == "CAPACITY_EXHAUSTED"
    assert (await back_end.good("list_servers", include_destroyed=True))["servers"] == []


async def test_unusable_texts_are_all_refused(back_end: ServerBackEnd) -> None:
    environment = {"PATH": "a\0", "N\0": "x", "PORT=1": "x", "PORT": "1", "MAP": "sea"}
    refusal = await back_end.try_create(
        runtime={"arguments": ["plain", "a\0b"], "environment": environment},
        tags={"a\0": "x", "b": "x\0", "c": "two\nlines", "d\x7f": "x", "mode": "duel"},
    )
    assert refusal.code == "VALIDATION_FAILED"
    assert set(refusal.errors) == {
        ("runtime", "arguments", "1", "invalid"),
        *(("runtime", "environment", name, "invalid") for name in ("PATH", "N\0", "PORT=1")),
        ("runtime", "environment", "PORT", "not-allowed"),
        *(("tags", name, "invalid") for name in ("a\0", "b", "c", "d\x7f")),
    }
    assert (await back_end.good("list_servers", include_destroyed=True))["servers"] == []


@pytest.mark.full
async def test_servers_and_builds_of_others_are_not_found(back_end: ServerBackEnd) -> None:
    server = await back_end.create()
    other_game = await back_end.developer.game()
    for game_id, namespace in ((back_end.game_id, "staging"), (other_game, "prod")):
        target = {"game_id": game_id, "environment_id": namespace}
        token = await back_end.developer.service_token(game_id, namespace)
        other = ServerBackEnd(back_end.developer, game_id, token)
        for slug in ("get_server", "destroy_server", "get_server_logs"):
            more = {"stream": "std_out"} if slug == "get_server_logs" else {}
            answer = await other.call(slug, **target, server_id=server["id"], **more)
            assert answer.code == "SERVER_NOT_FOUND", slug
        assert (await other.good("list_servers", **target))["servers"] == []
    other.build_id = back_end.build_id
    refusal = await other.try_create()
    expected = (("runtime", "build", "not-found"),)
    assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", expected)
    await back_end.until(server["id"], "running")


@pytest.mark.full
async def test_host_networking_gives_the_requested_port(back_end: ServerBackEnd) -> None:
    number = free_host_port()
    network = on_host(number)
    record = await back_end.running(network=network)
    port = record["network"]["ports"]["game"]
    assert (port["public_hostname"], port["public_port"]) == ("127.0.0.1", number)
    assert port["routing"] == {"host": {}}
    await eventually(lambda: reached(record))
    second = await back_end.try_create(network=network)
    assert second.code == "VALIDATION_FAILED"
    assert second.errors[0][-2:] == ("internal_port", "not-unique")
    await back_end.good("destroy_server", server_id=record["id"], override_kill_timeout=0)
    await back_end.until(record["id"], "destroyed")
    third = await back_end.try_create(network=network)
    assert third.code == "OK"
    third_id = third.body["server"]["id"]
    await back_end.good("destroy_server", server_id=third_id, override_kill_timeout=0)
    await back_end.until(third_id, "destroyed")


@pytest.mark.full
async def test_only_the_owner_group_has_host_networking(
    full_service: FullService, client: ServiceClient
) -> None:
    developer = Developer(full_service, client)
    group_id = (await developer.good("create_group", display_name="Other"))["group_id"]
    game_id = await developer.game(developer_group_id=group_id)
    other = ServerBackEnd(developer, game_id, await developer.service_token(game_id))
    await other.prepare_build()
    server = await other.create(network=on_host(free_host_port()))
    ended_server = await other.until(server["id"], "failed")
    assert ended_server["failure"]["reason"] == "EXEC_FAILED"
    assert "runtime.host_network" in ended_server["failure"]["message"]


@pytest.mark.full
async def test_build_of_a_running_server_is_not_deleted(back_end: ServerBackEnd) -> None:
    server = await back_end.running()
    refusal = await back_end.developer.call(
        "delete_build", game_id=back_end.game_id, build_id=back_end.build_id
    )
    assert refusal.code == "IN_USE"
    await back_end.good("destroy_server", server_id=server["id"], override_kill_timeout=0)
    await back_end.until(server["id"], "destroyed")
    await back_end.developer.good(
        "delete_build", game_id=back_end.game_id, build_id=back_end.build_id
    )


async def test_server_does_not_inherit_the_priority_of_the_control_plane(
    back_end: ServerBackEnd, full_service: FullService
) -> None:
    record = await back_end.running(resources={"cpu": 1000, "memory": 128})
    pid = process_of(full_service, record["id"])
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.full
async def test_server_survives_a_kill_of_both_planes(tmp_path: Path) -> None:
    with running(FullService(tmp_path, runtime=game_programs.SETTINGS)) as service:
        async with open_back_end(service, "http") as back_end:
            await kill_both_planes(back_end, service)


async def kill_both_planes(back_end: ServerBackEnd, service: FullService) -> None:
    record = await back_end.running()
    await eventually(lambda: reached(record))
    pid = process_of(service, record["id"])

    async def written() -> Any:
        return (await back_end.lines(record["id"]))["lines"]

    lines = await eventually(written)
    for name in ("LOCK", "control/LOCK"):
        os.kill(int((service.data_dir / name).read_text().split()[0]), 9)
    assert await echoed_by_server(record) == b"hello", "the player's connection needs no plane"

    async def is_available() -> bool:
        try:
            return (await back_end.call("get_server", server_id=record["id"])).code == "OK"
        except httpx.TransportError:
            return False

    await eventually(is_available)
    assert without_usage(await back_end.get(record["id"])) == without_usage(record)
    assert process_of(service, record["id"]) == pid
    assert await written() == lines
    await back_end.good("destroy_server", server_id=record["id"])
    await back_end.until(record["id"], "destroyed")
    assert not Path(f"/proc/{pid}").exists()
