"""A whole service that runs game servers as Pods, against the API server of the tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.network.node_names import host_of_node
from pyservice.node import log_copier
from pyservice.node.log_copier import LogCopier
from pyservice.rpc.node_certificates import NodeCertificates
from pyservice.rpc.node_grpc import NodeClient
from pyservice_cli.connections import TOKEN_VARIABLE, URL_VARIABLE
from tests.support.cluster_service import cluster_settings
from tests.support.command_line import run
from tests.support.container_files import ContainerFiles
from tests.support.free_ports import free_port
from tests.support.full_service import FullService, eventually, running
from tests.support.kubernetes_api_server import (
    CONFIG_MAPS,
    NAMESPACE,
    NODES,
    ApiServer,
    open_server,
)
from tests.support.kubernetes_nodes import cluster_node
from tests.support.node_authority import NodeAuthority
from tests.support.sample_pods import container, waiting
from tests.support.server_back_end import ServerBackEnd, on_host, open_back_end
from tests.support.service_process import clean_environment
from tests.support.waiting import cancel, is_blocked, until_met

pytestmark = pytest.mark.anyio

HOST: Final = "203.0.113.7"
IMAGE: Final = f"registry.example.com/team/game:1.0@sha256:{'ab' * 32}"
SETTINGS: Final = f"""
game = "image"
[matchmaker.game_modes.duel.docker]
image = "{IMAGE}"
ports.game.protocol = "http"
"""


@contextlib.asynccontextmanager
async def open_cluster_service(
    server: ApiServer, folder: Path, node_listen: str = "127.0.0.1:0"
) -> AsyncIterator[ServerBackEnd]:
    """Starts a service, and opens the back end of a new game."""
    server.put(NODES, cluster_node("n1", addresses={"ExternalIP": HOST}))
    server.put(CONFIG_MAPS, {"metadata": {"name": "hosting-game-servers"}})
    authority = NodeAuthority(folder / "authority")
    certificates = authority.issue_to_service(folder / "certificates")
    authority.issue_to_node(folder / "n1", "n1")
    settings = cluster_settings(server, folder, certificates, node_listen)
    service = FullService(folder / "s", **settings)
    with running(service):
        async with open_back_end(service, "http") as back_end:
            yield back_end


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with open_server() as server:
        yield server


@pytest.mark.full
async def test_dynamic_server_runs_as_a_pod(server: ApiServer, tmp_path: Path) -> None:
    async with open_cluster_service(server, tmp_path) as back_end:
        created = await back_end.create(network={"ports": {}})
        server_id = created["id"]
        await until_met(lambda: server.pod(server_id))
        pod = server.pods[server_id]
        [container] = pod["spec"]["containers"]
        variables = {one["name"]: one["value"] for one in container["env"]}
        assert variables["HOSTING_API_URL"] == "http://hosting.example:8080"
        port = back_end.developer.full_service.ready["grpc"].rpartition(":")[2]
        assert variables["HOSTING_GRPC_ADDRESS"] == f"hosting.example:{port}"
        server.bind(server_id, "n1")
        server.run(server_id, "10.244.0.7")
        await back_end.until(server_id, "running")

        async def is_listed() -> bool:
            printed = await asyncio.to_thread(
                run, back_end.developer.full_service.data_dir, "status"
            )
            return "node n1: ready, lobbies: 0, servers: 1\n" in printed.stdout

        await eventually(is_listed)
        await back_end.good("destroy_server", server_id=server_id)
        await until_met(lambda: "deletionTimestamp" in server.pods[server_id]["metadata"])
        server.finish(server_id, 143)
        record = await back_end.until(server_id, "destroyed")
        assert record["exit_code"] == 143
        await until_met(lambda: server.pod(server_id) is None)


@pytest.mark.full
async def test_sighup_applies_settings_whatever_the_cluster_allows(
    server: ApiServer, tmp_path: Path
) -> None:
    """`check-config` names missing rights. Rate limits change also without rights, and without a cluster."""
    async with open_cluster_service(server, tmp_path) as back_end:
        service = back_end.developer.full_service
        assert service.process is not None
        server.forbidden = {("create", "pods")}
        for server.is_away in (False, True):
            before = reloads(service)
            service.process.send_signal(signal.SIGHUP)
            await until_met(partial(has_reloaded, service, before + 2))
        assert "settings not reloaded" not in (service.folder / "log").read_text()


def reloads(service: FullService) -> int:
    """Returns how often the planes have applied the settings again."""
    return len(re.findall(r'"event": ?"reloaded"', (service.folder / "log").read_text()))


def has_reloaded(service: FullService, count: int) -> bool:
    return reloads(service) == count


@pytest.mark.full
async def test_server_gets_its_public_port_with_its_node(server: ApiServer, tmp_path: Path) -> None:
    async with open_cluster_service(server, tmp_path) as back_end:
        created = await back_end.create()
        server_id, port = created["id"], created["network"]["ports"]["game"]
        assert port == {"protocol": "tcp", "routing": {"edge_guard": {}}}
        await until_met(lambda: server.pod(server_id))
        server.bind(server_id, "n1")
        server.run(server_id, "10.244.0.7")
        running_server = await back_end.until(server_id, "running")
        port = running_server["network"]["ports"]["game"]
        assert port["public_hostname"] == HOST
        assert 26_000 <= port["public_port"] <= 29_999
        listed = (await back_end.good("list_servers"))["servers"]
        assert [one["network"]["ports"]["game"] for one in listed] == [port]
        server.finish(server_id, 1)
        ended = await back_end.until(server_id, "destroyed")
        assert (ended["exit_code"], ended["network"]["ports"]["game"]) == (1, port)


@contextlib.asynccontextmanager
async def copied_logs(address: str, folder: Path) -> AsyncIterator[None]:
    """Copies logs from the folder `pods`, as the part of the service on the node n1 does."""
    certificates = NodeCertificates(folder / "n1", host_of_node("n1"))
    async with NodeClient(address, certificates) as client:
        copier = LogCopier(client.call, "n1", NAMESPACE, 1 << 20, folder / "pods")
        copying = asyncio.create_task(copier.run())
        try:
            yield
        finally:
            await cancel(copying)


@pytest.mark.full
async def test_log_shows_the_output_as_on_one_machine(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only readers and the end of the game server have the log copied.
    monkeypatch.setattr(log_copier, "COPY_S", 3_600.0)
    address = f"127.0.0.1:{free_port()}"
    async with (
        open_cluster_service(server, tmp_path, address) as back_end,
        copied_logs(address, tmp_path),
    ):
        created = await back_end.create(network={"ports": {}})
        server_id = created["id"]
        await until_met(lambda: server.pod(server_id))
        uid = server.pods[server_id]["metadata"]["uid"]
        files = ContainerFiles(tmp_path / "pods" / f"{NAMESPACE}_{server_id}_{uid}" / "game-server")
        files.write("one", "two")
        files.write("problem", stream="stderr")
        server.bind(server_id, "n1")
        server.run(server_id, "10.244.0.7")

        async def shown() -> Any:
            log = await back_end.lines(server_id)
            return log if log["lines"] else None

        log = await eventually(shown)
        assert log["lines"] == ["one", "two"]
        assert (await back_end.lines(server_id, "std_err"))["lines"] == ["problem"]
        watched = asyncio.create_task(back_end.lines(server_id, watch_index=log["watch"]["index"]))
        assert await is_blocked(watched)
        files.write("three")
        log = await watched
        assert log["lines"] == ["three"]
        assert len(log["timestamps"]) == 1
        files.write("four")

        async def has_four_lines() -> bool:
            return len((await back_end.lines(server_id))["lines"]) == 4

        await eventually(has_four_lines)
        files.write("the last line", stream="stderr")
        server.finish(server_id, 1)
        await back_end.until(server_id, "destroyed")
        log = await back_end.lines(server_id, "std_err")
        assert log["lines"] == ["problem", "the last line"]
        assert (await back_end.lines(server_id, "service"))["lines"] == []


@pytest.mark.full
async def test_what_a_cluster_cannot_run_is_refused_with_the_remedy(
    server: ApiServer, tmp_path: Path
) -> None:
    async with open_cluster_service(server, tmp_path) as back_end:
        refusal = await back_end.try_create(network=on_host(20_001))
        assert set(refusal.errors) == {
            ("network", "mode", "not-allowed"),
            ("network", "ports", "game", "routing", "host", "not-allowed"),
        }
        image = {"path": "image.tar", "content_length": 1}
        refusal = await back_end.call(
            "prepare_build", name="x", kind="docker_image", image_tag="x", image_file=image
        )
        assert refusal.errors == (("kind", "not-allowed"),)
        assert "upload the program as an archive" in str(refusal.body)


def deploy(back_end: ServerBackEnd, folder: Path) -> Any:
    """Runs `pyservice deploy` in the folder of a game. Returns its result."""
    service = back_end.developer.full_service
    folder.mkdir(exist_ok=True)
    (folder / "hosting.toml").write_text(SETTINGS)
    variables = {
        URL_VARIABLE: f"http://{service.ready['http']}",
        TOKEN_VARIABLE: service.cloud_token,
        "XDG_CONFIG_HOME": str(folder),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "pyservice_cli", "deploy", "--json", "--no-trial"],
        cwd=folder,
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.full
async def test_deployment_names_an_image_and_nodes_fetch_it(
    server: ApiServer, tmp_path: Path
) -> None:
    async with open_cluster_service(server, tmp_path) as back_end:
        result = await asyncio.to_thread(deploy, back_end, tmp_path / "game")
        assert result["changed"], result
        await until_met(lambda: server.pods)
        [(name, pod)] = server.pods.items()
        assert pod["spec"]["containers"][0]["image"] == IMAGE
        server.bind(name, "n1")
        state = waiting("ErrImagePull", "no such digest")
        server.set_status(name, containerStatuses=[container("image", state)])

        async def build() -> Any:
            listed = await back_end.developer.good("list_game_builds", game_id="image")
            [found] = listed["builds"]
            return found if "problem" in found else None

        found = await eventually(build)
        assert (found["image"], found["complete"]) == (IMAGE, True)
        assert found["problem"].startswith("1 node could not fetch the image when its version")
        assert "ErrImagePull: no such digest" in found["problem"]
        repeated = await asyncio.to_thread(deploy, back_end, tmp_path / "game")
        assert not repeated["changed"], "the build was found again"


@pytest.mark.full
async def test_dynamic_server_runs_the_image_of_its_build(
    server: ApiServer, tmp_path: Path
) -> None:
    async with open_cluster_service(server, tmp_path) as back_end:
        created = await back_end.good("prepare_build", name="server", image=IMAGE)
        assert created.keys() == {"build"}
        assert (created["build"]["complete"], created["build"]["image"]) == (True, IMAGE)
        runtime = {"build": created["build"]["id"], "arguments": ["--port=$(PORT_GAME)"]}
        server_id = (await back_end.create(runtime=runtime))["id"]
        await until_met(lambda: server.pod(server_id))
        pod = server.pods[server_id]
        [made] = pod["spec"]["containers"]
        assert (made["image"], made["args"]) == (IMAGE, ["--port=20000"])
        server.bind(server_id, "n1")
        message = "container has runAsNonRoot and image will run as root"
        state = waiting("CreateContainerConfigError", message)
        server.set_status(server_id, containerStatuses=[container("game-server", state)])
        record = await back_end.until(server_id, "failed")
        assert "such as USER 10001" in str(record["failure"])


def test_single_machine_imports_nothing_of_kubernetes() -> None:
    listing = "import pyservice.app.control_plane, sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    packages = ("aiohttp", "pyservice.kubernetes", "pyservice.node")
    assert not [name for name in result.stdout.split() if name.startswith(packages)]
