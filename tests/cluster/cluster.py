"""A real Kubernetes of several nodes on this machine, with real containers and networks of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cluster.cluster_files import BIN, FOLDER
from tests.cluster.control_groups import processes_with_groups, remove_groups
from tests.cluster.control_plane import LOST_NODE_S, ControlPlane
from tests.cluster.image_store import update_image_store
from tests.cluster.machines import START_S, network_of
from tests.cluster.node import Node
from tests.support.waiting import PATIENCE_S, until

Object = dict[str, Any]
COMMAND_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
RUN_PREFIX: Final = "run-"
"""Start of the name of a cluster's folder. The id of the process follows."""


class Cluster:
    """Control plane and nodes. `stop` removes everything, also after a failed start.

    If the process of the tests dies, the kernel ends all processes of the cluster.
    Kubernetes takes a node for lost that is silent for `lost_node_s`.
    """

    def __init__(self, count: int = 2, lost_node_s: int = LOST_NODE_S) -> None:
        self._folder = folder = FOLDER / f"{RUN_PREFIX}{os.getpid()}"
        names = [f"n{number}" for number in range(1, count + 1)]
        self._control_plane = ControlPlane(folder, names, lost_node_s)
        self._nodes = {
            name: Node(folder, number, self._control_plane) for number, name in enumerate(names, 1)
        }

    @property
    def nodes(self) -> list[str]:
        return list(self._nodes)

    @property
    def kubeconfig(self) -> Path:
        """File with the address of the API server and the credentials of its administrator."""
        return self._control_plane.kubeconfig

    def address_of(self, node: str) -> str:
        return self._nodes[node].address

    def start(self) -> None:
        """Starts the control plane and all nodes, and waits until Pods can run there."""
        remove_leftovers()
        update_image_store(self._folder)
        self._control_plane.boot()
        self._control_plane.start_api()
        for node in self._nodes.values():
            node.boot()
        self._control_plane.wait_api()
        self._control_plane.start_controllers()
        for node in self._nodes.values():
            node.join()
        for name in self._nodes:
            self.wait_for(f"/api/v1/nodes/{name}", is_ready, START_S)

    def stop(self) -> None:
        """Ends all processes, and removes control groups and files."""
        for node in self._nodes.values():
            node.machine.kill()
        self._control_plane.machine.kill()
        _remove(os.getpid())

    def cut_off(self, node: str) -> None:
        """Unplugs a node from the network. Its Pods run on."""
        self._nodes[node].cut_off()

    def reconnect(self, node: str) -> None:
        self._nodes[node].reconnect()

    def kill(self, node: str) -> None:
        """Ends a node with its Pods, as a loss of power does."""
        self._nodes[node].kill()

    def restart(self, node: str) -> None:
        """Boots a killed node again."""
        self._nodes[node].boot()
        self._nodes[node].join()
        self.wait_for(f"/api/v1/nodes/{node}", is_ready)

    def run_on(self, node: str, *command: str) -> str:
        """Runs a command on a node, and returns its output."""
        return self._nodes[node].machine.run(*command)

    def stop_api_server(self) -> None:
        """Kills the API server with its controllers. Nodes and Pods run on."""
        self._control_plane.stop_api()

    def restart_api_server(self) -> None:
        self._control_plane.restart_api()

    def start_program(self, program: str, *flags: str) -> None:
        """Starts a program of `BIN` beside the control plane."""
        self._control_plane.spawn(program, *flags)

    def control_plane_programs(self) -> dict[str, int]:
        """Returns the process ids of the programs of the control plane, by name."""
        return self._control_plane.machine.programs()

    def processes_on(self, node: str) -> dict[int, str]:
        """Returns the commands of all processes on a node and in its Pods, by process id."""
        return self._nodes[node].machine.processes()

    def pinned(self, image: str) -> str:
        """Returns the reference with the digest of an image that each node has."""
        repository = image.rpartition(":")[0]
        [reference] = {node.pin(image, repository) for node in self._nodes.values()}
        return reference

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Moves this thread to the network of the control plane, from which it reaches all Pods."""
        with network_of(self._control_plane.machine):
            yield

    @contextlib.contextmanager
    def network_on(self, node: str) -> Iterator[None]:
        """Moves this thread to the network of a node, from which it reaches the Pods of the node."""
        with network_of(self._nodes[node].machine):
            yield

    def api(self) -> httpx.Client:
        """Returns a client of the API server, with all rights. Use it in the network of the cluster."""
        return self._control_plane.client()

    def in_network(self, *command: str | Path) -> list[str]:
        """Returns a command that runs the given one in that network."""
        return self._control_plane.machine.in_network(*command)

    def run_in_namespace(self, *command: str | Path, text: str | None = None) -> str:
        """Runs a command in that network with `KUBECONFIG`, and returns its output."""
        ended = subprocess.run(
            self.in_network(*command),
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert ended.returncode == 0, f"{command}: {ended.stderr or ended.stdout}"
        return ended.stdout

    def kubectl(self, *words: str, text: str | None = None) -> str:
        return self.run_in_namespace(BIN / "kubectl", *words, text=text)

    def helm(self, *words: str | Path) -> str:
        return self.run_in_namespace(BIN / "helm", *words)

    def apply(self, *objects: Object) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--filename=-", text=json.dumps(listed))

    def get(self, path: str) -> Object | None:
        """Returns an object or a list of objects by its path. None: there is none."""
        with self.network(), self._control_plane.client() as client:
            return _object_of(client.get(path))

    def wait_for(
        self, path: str, condition: Callable[[Object], object], timeout_s: float = PATIENCE_S
    ) -> Object:
        """Returns an object as soon as the condition holds for it."""
        end = time.monotonic() + timeout_s
        with self.network(), self._control_plane.client() as client:
            while True:
                found = _object_of(client.get(path))
                if found is not None and condition(found):
                    return found
                assert time.monotonic() < end, f"{path}: {(found or {}).get('status')}"
                time.sleep(_POLL_S)

    def wait_gone(self, path: str) -> None:
        with self.network(), self._control_plane.client() as client:
            until(lambda: _object_of(client.get(path)) is None)

    def logs(self) -> str:
        """Returns the last output of each program of the cluster."""
        machines = [self._control_plane.machine, *(node.machine for node in self._nodes.values())]
        return "\n".join(
            f"--- {machine.name}: {path.stem}\n{machine.log(path.stem)}"
            for machine in machines
            for path in sorted(machine.folder.glob("*.log"))
        )


def is_ready(found: Object) -> bool:
    """Returns whether a node or a Pod has the condition `Ready`."""
    conditions = found.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _object_of(response: httpx.Response) -> Object | None:
    if response.status_code == httpx.codes.NOT_FOUND:
        return None
    response.raise_for_status()
    found: Object = response.json()
    return found


def remove_leftovers() -> None:
    """Removes control groups and files of clusters that were killed with their processes."""
    folders = {int(path.name.removeprefix(RUN_PREFIX)) for path in FOLDER.glob(f"{RUN_PREFIX}*")}
    for pid in folders | processes_with_groups():
        if not Path(f"/proc/{pid}").exists():
            _remove(pid)


def _remove(pid: int) -> None:
    remove_groups(pid)
    shutil.rmtree(FOLDER / f"{RUN_PREFIX}{pid}", ignore_errors=True)
