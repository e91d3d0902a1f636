"""`make run ARGS=--lan`: players of the local network use the address that it prints.

A second address of loopback stands for the network. A network namespace has routes of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect as websocket

from examples.local_network import NoLocalNetwork, at, this_address
from tests.support.example_run import ROOT, Run, StartRun
from tests.support.example_run import start_run as start_run
from tests.support.service_process import clean_environment
from tests.support.waiting import PATIENCE_S

OPEN = "Ctrl-C ends all of it"
NETWORK = "127.0.0.2"
FIND_ADDRESS = "from examples.local_network import *; print(this_address(FOUND))"


def answer(run: Run, path: str, body: Any) -> Any:
    token = (run.data_dir / "public.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{run.api_url}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


@pytest.mark.full
def test_every_printed_address_is_in_the_network(start_run: StartRun) -> None:
    run = start_run("--lan", NETWORK)
    run.wait_for(OPEN)
    assert f"http://{NETWORK}:" in run.page
    assert run.page.count(NETWORK) == 2, "the page and its API"
    assert run.metrics_url.startswith("http://127.0.0.1:"), "metrics are not for players"
    with urllib.request.urlopen(run.page, timeout=PATIENCE_S) as page:
        assert page.status == 200
    found = answer(run, "/matchmaker/lobbies/find", {"game_modes": ["arena"]})
    host = found["ports"]["game"]["host"]
    assert host.startswith(f"{NETWORK}:")
    with websocket(f"ws://{host}/play?token={found['player']['token']}") as player:
        assert json.loads(player.recv(timeout=PATIENCE_S))["type"] == "welcome"
    for address in (run.api_url.removeprefix("http://"), host):
        with socket.socket() as outside, pytest.raises(ConnectionRefusedError):
            outside.connect(("127.0.0.1", int(address.rpartition(":")[2])))


def test_listener_keeps_its_port() -> None:
    assert at("192.168.1.5", "127.0.0.1:8080") == "192.168.1.5:8080"


@pytest.mark.parametrize("given", ["0.0.0.0", "game.local", "192.168.1.5:8080", "::1"])
def test_other_values_are_refused_with_their_name(given: str) -> None:
    with pytest.raises(NoLocalNetwork, match=f"--lan {given}"):
        this_address(given)


def found_in_namespace(setup: str) -> subprocess.CompletedProcess[str]:
    script = f"{setup}; exec {sys.executable} -c '{FIND_ADDRESS}'"
    return subprocess.run(
        ["unshare", "--map-root-user", "--net", "sh", "-ec", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def can_unshare() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    command = ["unshare", "--map-root-user", "--net", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_namespace = pytest.mark.skipif(
    not can_unshare(), reason="no network namespace for this user, or no `ip`"
)


@needs_namespace
def test_address_is_that_of_the_default_route() -> None:
    found = found_in_namespace(
        "ip link set lo up; ip addr add 10.1.2.3/24 dev lo; ip addr add 10.9.9.9/24 dev lo; "
        "ip route add default dev lo src 10.1.2.3"
    )
    assert (found.stdout, found.stderr) == ("10.1.2.3\n", "")


@needs_namespace
def test_machine_without_a_network_gets_a_remedy() -> None:
    found = found_in_namespace("ip link set lo up")
    assert "name one with --lan ADDRESS" in found.stderr


DEPLOY_IN_NETWORK = f"""
ip link set lo up
ip addr add 10.1.2.3/24 dev lo
export HOME="$PWD" XDG_CONFIG_HOME="$PWD/configuration"
mkdir my-game
cd my-game
(cd {ROOT} && exec {sys.executable} -m examples.run --lan 10.1.2.3 --data-dir "$HOME/data" --bots 0 \\
    --http 127.0.0.1:0 --grpc 127.0.0.1:0 --cdn 127.0.0.1:0 --metrics 127.0.0.1:0) >../printed 2>&1 &
run=$!
trap 'kill -INT $run; wait $run' EXIT
until grep -q '{OPEN}' ../printed; do kill -0 $run; sleep 0.1; done
{sys.executable} -m pyservice_cli init --template existing-server
{sys.executable} -m pyservice_cli whoami --json >../whoami.json
{sys.executable} -m pyservice_cli deploy --no-trial --json >../deployed.json
"""


@pytest.mark.full
@needs_namespace
@pytest.mark.skipif(os.geteuid() != 0, reason="a service for real root needs its capabilities")
def test_command_line_deploys_to_a_service_of_the_network(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["unshare", "--net", "sh", "-ec", DEPLOY_IN_NETWORK],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S * 4,
    )
    assert ended.returncode == 0, ended.stderr
    identity = json.loads((tmp_path / "whoami.json").read_text())
    assert identity["profile"] == "local"
    assert identity["url"].startswith("http://10.1.2.3:")
    assert json.loads((tmp_path / "deployed.json").read_text())["changed"] is True
