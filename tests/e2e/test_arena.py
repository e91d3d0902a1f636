"""The arena with `make run`: bots, a browser, printed curl commands, and SIGKILL."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect as websocket

from tests.support.browser import browser as browser
from tests.support.example_run import ROOT, Run, StartRun
from tests.support.example_run import start_run as start_run
from tests.support.front_metrics import passed_besides_creation
from tests.support.leftover_processes import pids_of
from tests.support.loopback import FREE_PORT
from tests.support.supervised_service import is_gone
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.full

needs_curl = pytest.mark.skipif(
    shutil.which("curl") is None, reason="no curl: apt-get install curl"
)


def play_bots(run: Run, count: int, seconds: float) -> list[dict[str, Any]]:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "examples.arena.bots", "--json", "--api", run.api_url),
            *("--token-file", str(run.data_dir / "public.token")),
            *("--count", str(count), "--seconds", str(seconds)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    reports: list[dict[str, Any]] = json.loads(result.stdout)
    return reports


def metrics_page(run: Run) -> str:
    with urllib.request.urlopen(run.metrics_url, timeout=PATIENCE_S) as response:
        return str(response.read().decode())


def metric(run: Run, name: str, *labels: str) -> float:
    lines = metrics_page(run).splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.split("{")[0].split(" ")[0] == name and all(label in line for label in labels)
    )


def wait_until(condition: Any, message: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, message
        time.sleep(0.05)


@pytest.mark.timeout(180)
def test_32_bots_play_for_a_minute_and_keep_their_slots(start_run: StartRun) -> None:
    run = start_run()
    run.wait_for("Ctrl-C ends all of it")
    reports = play_bots(run, 32, 60)
    assert len(reports) == 32
    assert all(report["joined"] for report in reports)
    assert all(report["snapshots"] >= 0.75 * 20 * report["played_s"] for report in reports)
    assert sum(report["score"] for report in reports) > 0
    assert metric(run, "hosting_ledger_violations_total") == 0
    assert passed_besides_creation(metrics_page(run)) == set()
    connected = metric(run, "hosting_player_tokens_total", 'outcome="connected"')
    assert connected >= 32
    wait_until(
        lambda: metric(run, "hosting_slots", 'state="connected"') == 0,
        "slots of gone bots stay taken",
    )


def find(run: Run, **fields: Any) -> tuple[str, Any]:
    token = run.data_dir.joinpath("public.token").read_text().strip()
    request = urllib.request.Request(
        f"{run.api_url}/matchmaker/lobbies/find",
        data=json.dumps({"game_modes": ["arena"], **fields}).encode(),
        headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return "OK", json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)["code"], None


def address_of(placement: Any) -> str:
    return f"ws://{placement['ports']['game']['host']}/play?token={placement['player']['token']}"


def test_closed_socket_frees_its_slot_for_find(start_run: StartRun) -> None:
    run = start_run()
    run.wait_for("Ctrl-C ends all of it")
    code, placement = find(run)
    with websocket(address_of(placement)) as player:
        assert json.loads(player.recv(timeout=PATIENCE_S))["type"] == "welcome"
        while code == "OK":
            code, _ = find(run, prevent_auto_create_lobby=True)
        assert code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    alone = {"prevent_auto_create_lobby": True}
    wait_until(lambda: find(run, **alone)[0] == "OK", "the slot of a closed socket is not free")
    assert find(run, **alone)[0] == "MATCHMAKER_NO_AVAILABLE_LOBBIES"


def test_bots_join_after_a_person_and_leave_after_the_last(start_run: StartRun) -> None:
    run = start_run()
    run.wait_for("Ctrl-C ends all of it")
    bots = subprocess.Popen(
        [
            *(sys.executable, "-m", "examples.arena.bots", "--api", run.api_url),
            *("--token-file", str(run.data_dir / "public.token"), "--count", "2"),
            *("--seconds", "0", "--with-people", "1"),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(2):
            _, placement = find(run)
            # The player reads nothing, so the end of its socket is not confirmed.
            with websocket(address_of(placement), close_timeout=0):
                wait_until(lambda: connected(run) == 3, "bots do not join")
            wait_until(lambda: connected(run) == 0, "bots do not leave")
    finally:
        bots.terminate()
        _, complaints = bots.communicate(timeout=PATIENCE_S)
    assert (bots.returncode, complaints) == (0, "")


def connected(run: Run) -> float:
    return metric(run, "hosting_slots", 'state="connected"')


def test_run_announces_its_bots(start_run: StartRun) -> None:
    run = start_run(bots=3)
    run.wait_for("3 bots play with you")
    run.wait_for("Ctrl-C ends all of it")


@needs_curl
def test_printed_curl_commands_work(start_run: StartRun) -> None:
    run = start_run()
    run.wait_for("Ctrl-C ends all of it")
    lines = run.curl_lines
    assert len(lines) == 3
    script = "\n".join(["set -e", *lines, lines[1]])
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr
    reserved, confirmed, freed, refused = result.stdout.splitlines()
    assert re.fullmatch(r"A slot is reserved for player_\S+\.", reserved)
    assert (confirmed, freed) == ("The player is connected.", "The slot is free again.")
    assert json.loads(refused)["code"] == "PLAYER_TOKEN_CONSUMED", "a failure shows its answer"
    assert metric(run, "hosting_player_tokens_total", 'outcome="disconnected"') == 1


def test_ctrl_c_ends_every_started_process(start_run: StartRun) -> None:
    run = start_run(bots=2)
    run.wait_for("Ctrl-C ends all of it")
    wait_until(lambda: metric(run, "hosting_slots", 'state="connected"') == 2, "bots do not play")
    children = children_of(run.process.pid)
    assert len(children) == 2
    beside = list(pids_of(run.data_dir))
    assert len(beside) >= 3, "edge-guard, a keeper and its game server"
    run.stop()
    assert run.process.returncode == 0
    assert all(is_gone(pid) for pid in (*children, *beside)), "a process still runs"


def test_run_after_a_kill_reuses_the_data_without_leftovers(start_run: StartRun) -> None:
    first = start_run(bots=1)
    first.wait_for("Ctrl-C ends all of it")
    children = children_of(first.process.pid)
    wait_until(lambda: any(first.data_dir.glob("servers/*/spec")), "no game server")
    first.process.kill()
    first.process.wait()
    wait_until(lambda: all(map(is_gone, children)), "children go on")
    wait_until(lambda: not list(pids_of(first.data_dir)), "game servers keep running")
    second = start_run()
    second.wait_for("Ctrl-C ends all of it")
    assert all(report["joined"] for report in play_bots(second, 2, 1))


def test_players_keep_playing_across_a_service_restart(start_run: StartRun) -> None:
    """The keeper, the lobby process and edge-guard keep running."""
    run = start_run(address=FREE_PORT)
    run.wait_for("Ctrl-C ends all of it")
    _, placement = find(run)
    with websocket(address_of(placement)) as player:
        assert json.loads(player.recv(timeout=PATIENCE_S))["type"] == "welcome"
        beside = set(pids_of(run.data_dir))
        for name in ("SERVE.LOCK", "LOCK", "control/LOCK"):
            os.kill(int(run.data_dir.joinpath(name).read_text().split()[0]), signal.SIGKILL)
        run.wait_for("restarting it")
        began = time.monotonic()
        while run.log().count("control plane is up") < 2:
            last = json.loads(player.recv(timeout=1))
            assert time.monotonic() - began < 60, run.output()
        assert last["type"] == "state"
        assert set(pids_of(run.data_dir)) == beside, "the same processes"
        wait_until(
            lambda: metric(run, "hosting_slots", 'state="connected"') == 1, "the slot came not back"
        )
        _, second = find(run, prevent_auto_create_lobby=True)
        assert second["lobby"]["lobby_id"] == placement["lobby"]["lobby_id"]
        with websocket(address_of(second)) as other:
            assert json.loads(other.recv(timeout=PATIENCE_S))["type"] == "welcome"
    run.stop()
    assert all(map(is_gone, beside))


def test_kill_keeps_players_and_allows_new_ones_after_restart(start_run: StartRun) -> None:
    run = start_run(bots=3, address=FREE_PORT)
    run.wait_for("Ctrl-C ends all of it")
    wait_until(lambda: metric(run, "hosting_slots", 'state="connected"') == 3, "bots do not play")
    os.kill(run.service_pid(), signal.SIGKILL)
    wait_until(lambda: "plane restarted" in run.log(), "the data plane is not restarted")

    def answers() -> bool:
        try:
            return metric(run, "hosting_slots", 'state="connected"') == 3
        except OSError:
            return False

    wait_until(answers, "the three players' slots did not come back")
    assert all(report["joined"] for report in play_bots(run, 3, 2))
    assert metric(run, "hosting_ledger_violations_total") == 0


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def test_browser_player_moves_and_sees_a_bot_move(start_run: StartRun, browser: Any) -> None:
    run = start_run(bots=2)
    run.wait_for("Ctrl-C ends all of it")
    page = browser.new_page()
    page.goto(run.page)
    page.wait_for_selector("body[data-phase=playing]", timeout=15_000)
    positions = page.wait_for_selector('#positions[data-me*=","]', state="attached")

    def own_position() -> str:
        return str(positions.get_attribute("data-me"))

    def others() -> dict[str, Any]:
        positions_of_others: dict[str, Any] = json.loads(
            positions.get_attribute("data-others") or "{}"
        )
        return positions_of_others

    wait_until(lambda: len(others()) == 2, "the bots are not seen")
    start, bots = own_position(), others()
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        page.keyboard.down(key)
        page.wait_for_timeout(300)
        page.keyboard.up(key)
        if own_position() != start:
            break
    wait_until(lambda: own_position() != start, "the player does not move")
    wait_until(lambda: others() != bots, "no bot moves")
