"""Starts that the service must refuse, and the messages that it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import MakePlane, OpenClients
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import ApiSession, until
from tests.support.service_process import clean_environment

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]


def pyservice(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyservice", *words],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "journal"
    }


async def test_second_process_on_a_data_directory_is_refused_with_the_pid(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane(shim=None)
    await plane.start()
    before = files_of(plane.data_dir)
    second = pyservice(
        *("serve", "--role", "data", "--data-dir", str(plane.data_dir)),
        *("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
        *("--feed", str(plane.feed_file), "--ready-file", str(plane.folder / "second.json")),
    )
    assert second.returncode not in (0, -signal.SIGKILL)
    assert str(plane.pid) in second.stderr
    assert str(plane.data_dir) in second.stderr
    assert "Traceback" not in second.stderr
    assert not (plane.folder / "second.json").exists()
    assert files_of(plane.data_dir) == before
    clients = open_clients(plane)
    for client in clients:
        answer = await client.call("list", token=plane.service_token)
        assert answer.code == "OK"
    await plane.kill()
    await plane.start()
    await plane.stop()


WRONG_SETTINGS = """
http = "nowhere"
no_such_setting = 1
lame_duck_ms = -1
find_wait_ms = "long"
log_level = "loud"
trusted_proxies = ["10.0.0.0/99"]
[journal]
segment_bytes = 17
no_such_one = true
[rate_limits.client]
per_second = -3
[[regions]]
name_id = "Local!"
region_display_name = "Local"
"""
WRONG_NAMES = (
    "http",
    "no_such_setting",
    "lame_duck_ms",
    "find_wait_ms",
    "log_level",
    "trusted_proxies",
    "journal.segment_bytes",
    "journal.no_such_one",
    "rate_limits.client.per_second",
    "regions.0.name_id",
    "grpc",
    "PYSERVICE_NO_SUCH_VARIABLE",
)


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_invalid_settings_print_every_problem_and_start_nothing(
    tmp_path: Path, command: str
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(WRONG_SETTINGS)
    data_dir = tmp_path / "data"
    result = pyservice(
        *(command, "--config", str(config), "--data-dir", str(data_dir), "--grpc", "host"),
        PYSERVICE_NO_SUCH_VARIABLE="1",
    )
    assert result.returncode not in (0, -signal.SIGKILL)
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    for name in WRONG_NAMES:
        assert any(name in line for line in lines), f"{name} is not among:\n{result.stderr}"
    assert len(lines) == len(WRONG_NAMES), result.stderr
    assert not data_dir.exists()


def wrong_feed(plane: Plane) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(plane.feed_file.read_text())
    (namespace,) = content["namespaces"]
    wrong = json.loads(json.dumps(namespace))
    wrong["namespace_id"] = "00000000-0000-4000-8000-00000000000A"
    wrong["name_id"] = "Not A Name"
    wrong["matchmaker"]["lobby_count_max"] = 0
    wrong["versions"][0]["matchmaker"]["captcha"] = {
        "captcha_a": {"secret_key": "s", "site_key": "k"}
    }
    wrong["versions"][0]["matchmaker"]["game_modes"]["duel"]["max_players"] = 0
    content["namespaces"] = [namespace, wrong]
    return content


async def test_feed_file_problems_are_all_logged_and_valid_parts_apply(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane(shim=None)
    plane.feed_file.write_text(json.dumps(wrong_feed(plane)))
    checked = pyservice("check-config", "--feed", str(plane.feed_file))
    assert checked.returncode == 1
    assert "Traceback" not in checked.stderr
    wrong = ("namespace_id", "name_id", "lobby_count_max", "captcha", "max_players")
    for word in wrong:
        assert word in checked.stderr, f"{word} is not among:\n{checked.stderr}"
    await plane.start()
    for word in wrong:
        assert word in plane.log_tail()
    status, text = await plane.look("/readyz?verbose")
    assert status == 200
    assert "1 namespaces" in text
    assert "problems" in text
    answer = await open_clients(plane).http.call("list", token=plane.service_token)
    assert answer.code == "OK"
    await plane.stop()


async def test_invalid_feed_update_keeps_the_last_valid_configuration(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane(shim=None)
    await plane.start()
    clients = open_clients(plane)
    session = ApiSession(plane, clients.http, plane.service_token)
    lobby = await session.attach("duel")
    content = json.loads(plane.feed_file.read_text())
    content["namespaces"][0]["revision"] += 1
    modes = content["namespaces"][0]["versions"][0]["matchmaker"]["game_modes"]
    # A verification that cannot run must let no player through, so the whole configuration is
    # refused.
    modes["duel"]["actions"] = {
        "join": {"enabled": True, "verification": {"url": "http://127.0.0.1/ask", "headers": {}}}
    }
    modes["large"]["max_players"] = 1
    plane.feed_file.write_text(json.dumps(content))
    checked = pyservice("check-config", "--feed", str(plane.feed_file))
    assert checked.returncode == 1
    assert "verification" in checked.stderr
    plane.process_signal(signal.SIGHUP)
    await until(lambda: "settings not reloaded" in plane.log_tail(), "the log of the refusal")
    assert "actions.join.verification" in plane.log_tail()
    await session.join(lobby)
    # The last valid configuration is stored, so it also applies after a restart with the invalid
    # file.
    await plane.kill()
    await plane.start()
    assert "actions.join.verification" in (await plane.look("/readyz?verbose"))[1]
    await session.join(lobby)
    large_lobby = await session.attach("large")
    await session.join(large_lobby, party_size=2)
    await plane.stop()


# Offset behind the 128 bytes of the batch header and before the end of its only event.
IN_THE_EVENTS = 140


async def test_journal_damaged_in_the_middle_is_refused_with_its_position(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane()
    await plane.start()
    session = ApiSession(plane, open_clients(plane).http, plane.service_token)
    lobby = await session.attach("large")
    for _ in range(5):
        await session.join(lobby)
    commits = [
        step for step in plane.commanded.steps() if (step.kind, step.name[:4]) == ("pwrite", "seg-")
    ]
    await plane.kill()
    # Later batches are valid, so truncating the journal here would lose acknowledged data.
    damaged = commits[-4]
    segment = plane.commanded.journal_folder / damaged.name
    with segment.open("r+b") as file:
        file.seek(damaged.offset + IN_THE_EVENTS)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    before = segment.read_bytes()
    plane.spawn()
    assert await plane.wait_ended() == 1
    returned = plane.log_tail()
    assert f"segment {int(damaged.name[4:-4])}" in returned
    assert f"offset {damaged.offset}" in returned
    assert "Traceback" not in returned
    assert segment.read_bytes() == before
    with segment.open("r+b") as file:
        file.seek(damaged.offset + IN_THE_EVENTS)
        file.write(byte)
    await plane.start()
    assert await plane.metric("hosting_slots", state="reserved") == 5
    await plane.stop()
