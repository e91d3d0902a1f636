"""The pages about Kubernetes: a reader follows them on the cluster, from the certificates to the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from websockets.sync.client import connect

from pyservice_cli.api import Api
from pyservice_cli.connections import Connection
from tests.cluster.cluster import Cluster
from tests.cluster.cluster_files import BIN, RUNNER_IMAGE
from tests.cluster.hosted_service import NAMESPACE, RELEASE
from tests.cluster.rendered_chart import objects
from tests.support.command_line import run
from tests.support.doc_pages import CLUSTER, PAGES, Block, Reader, Shell, blocks_of
from tests.support.full_service import FullService, running
from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

INSTALLATION, FAILURES, MOVE = CLUSTER
VALUES: Final = {
    block.file: block.text
    for name in PAGES
    for block in blocks_of(name)
    if block.file is not None and block.file.endswith("values.yaml")
}
IMAGE_OF_PAGES: Final = {"image": {"service": "localhost/a:1", "runner": "localhost/b:1"}}
API_PORT: Final = 30_080
VOLUME: Final = "/var/lib/kubelet/volume"


@pytest.fixture
def reader(cluster: Cluster, service_image: str, tmp_path: Path) -> Iterator[Reader]:
    """Has a shell in the network of the cluster. The game server's packages are downloaded before."""
    packages = tmp_path / "packages"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "websockets"]
    subprocess.run([*download, f"--dest={packages}"], check=True)
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "deploy").symlink_to(ROOT / "deploy")
    with cluster.network():
        shell = Shell(folder)
    variables = {
        "PATH": f"{BIN}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": cluster.kubeconfig,
        "XDG_CONFIG_HOME": tmp_path / "configuration",
        "PIP_NO_INDEX": 1,
        "PIP_FIND_LINKS": packages,
    }
    shell.run("\n".join(f"export {name}={value}" for name, value in variables.items()))
    first = cluster.nodes[0]
    words = {
        "203.0.113.1": cluster.address_of(first),
        "n1 n2 n3": " ".join(cluster.nodes),
        "n1, n2, n3": ", ".join(cluster.nodes),
        " --node n3": "",
        "localhost/hosting-runner:0.2.0": RUNNER_IMAGE,
        "localhost/hosting:0.2.0": service_image,
    }
    try:
        yield Reader(folder, shell, {}, words=words)
    finally:
        shell.close()


def volume(cluster: Cluster, name: str) -> dict[str, Any]:
    """Returns a volume on the first node, as the storage class of k3s makes them."""
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [cluster.nodes[0]]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "50Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"{VOLUME}/{name}", "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
        },
    }


def play(cluster: Cluster, shell: Shell) -> None:
    """A player of the deployed game connects, and gets the state of the match."""
    public = json.loads(shell.run("pyservice public-token --folder star-catcher --json"))
    api = Api(Connection(public["api_url"], public["token"], "test"))
    found = api.post("/matchmaker/lobbies/find", {"game_modes": ["catch"]})
    port, token = found["ports"]["game"], found["player"]["token"]
    assert port["hostname"] in map(cluster.address_of, cluster.nodes)
    url = f"ws://{port['hostname']}:{port['port']}/?token={token}"
    with connect(url, open_timeout=PATIENCE_S) as connection:
        assert "star" in json.loads(connection.recv(timeout=PATIENCE_S))


def back_up(service: FullService, target: Path) -> str:
    """Starts a service on this machine, and stores a backup. Returns the token of its owner."""
    with running(service):
        stored = run(service.data_dir, "backup", "create", str(target))
        assert stored.returncode == 0, stored.stderr
        return service.cloud_token


def move(cluster: Cluster, reader: Reader, token: str) -> None:
    """Restores the backup in the cluster, and installs the chart on it. The token stays valid."""
    reader.follow(MOVE)
    installation = next(
        block.text for block in blocks_of(INSTALLATION) if block.text.startswith("helm install")
    )
    reader.shell.run(installation)
    url = f"http://{cluster.address_of(cluster.nodes[0])}:{API_PORT}"
    assert len(Api(Connection(url, token, "test")).get("/cloud/games")["groups"]) == 1


def test_reader_installs_plays_moves_and_renews(
    cluster: Cluster, reader: Reader, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        cluster.run_on(cluster.nodes[0], "mkdir", "-p", "-m", "777", f"{VOLUME}/{name}")
        cluster.apply(volume(cluster, name))

    def play_before_upgrade(block: Block) -> None:
        if block.text.startswith("helm upgrade"):
            play(cluster, reader.shell)

    reader.before = play_before_upgrade
    token = back_up(FullService(tmp_path / "s"), reader.folder / "backups")
    try:
        with cluster.network():
            # The page ends with the removal of the service.
            reader.follow(INSTALLATION)
            move(cluster, reader, token)
            reader.follow(FAILURES)
            reader.shell.run(f"helm uninstall {RELEASE} --namespace {NAMESPACE} --wait")
    finally:
        cluster.kubectl("delete", "namespace", "hosting-games", NAMESPACE, "--ignore-not-found")
        cluster.kubectl("delete", "persistentvolume", "--all")


@pytest.mark.parametrize("file", sorted(VALUES))
def test_values_of_pages_suit_the_chart(tmp_path: Path, file: str) -> None:
    values = yaml.safe_load(VALUES[file])
    found = objects({**IMAGE_OF_PAGES, **values}, tmp_path)
    [workload] = (one for one in found if one["kind"] == "DaemonSet")
    [container] = workload["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    names = {one["region"] for one in json.loads(variables["PYSERVICE_KUBERNETES__REGIONS"])}
    regions = tomllib.loads(values.get("configuration", "")).get("regions", ())
    assert names == {one["name_id"] for one in regions}
