"""The service in the cluster, installed by the chart as users install it, and a published game."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from pyservice_cli.api import Answer, Api
from pyservice_cli.connections import Connection
from pyservice_cli.failures import CommandFailed
from tests.cluster.cluster import Cluster, Object, is_ready
from tests.cluster.cluster_files import CHART, RUNNER_IMAGE
from tests.cluster.machines import START_S
from tests.support import game_programs
from tests.support.service_process import clean_environment
from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S, until

RELEASE: Final = "hosting"
NAMESPACE: Final = "hosting"
_SELECTED: Final = "app.kubernetes.io/name=hosting"
GAMES: Final = "/api/v1/namespaces/hosting-games/pods"
GAME: Final = "duel"
MODE: Final = "duel"
_HTTP_PORT: Final = 30_080
_CDN_PORT: Final = 30_092


class HostedService:
    """The release. Its Pod is on the first node, so that the cluster can lose the others."""

    pods: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def __init__(self, cluster: Cluster, image: str, folder: Path, configuration: str = "") -> None:
        """`configuration` has more settings of the service, in TOML."""
        self.cluster = cluster
        self._image = image
        self._folder = folder
        self.node = cluster.nodes[0]
        address = cluster.address_of(self.node)
        self.url = f"http://{address}:{_HTTP_PORT}"
        self._configuration = f"""
public_url = "{self.url}"
cdn_url = "http://{address}:{_CDN_PORT}"
{configuration}"""

    @property
    def values(self) -> Object:
        """Values of the release. Small requests let both nodes run everything."""
        small = {"requests": {"cpu": "100m", "memory": "128Mi"}}
        return {
            "configuration": self._configuration,
            "image": {"service": self._image, "runner": RUNNER_IMAGE},
            "service": {
                "nodeSelector": {"kubernetes.io/hostname": self.node},
                "resources": small,
            },
            "persistence": {"enabled": False},
            "api": {"type": "NodePort", "nodePorts": {"http": _HTTP_PORT, "cdn": _CDN_PORT}},
            "certificates": {"nodes": self.cluster.nodes},
            "node": {"resources": small},
        }

    def install(self) -> None:
        """Installs the chart, and waits until the service and its parts on the nodes are ready."""
        self.cluster.kubectl("create", "namespace", NAMESPACE)
        self._create_certificates()
        self.create_release()
        self._wait_ready()
        reading = ("cat", "/var/lib/hosting/data/control/owner.token")
        self._owner_token = self.kubectl("exec", f"{RELEASE}-0", "--", *reading).strip()

    def create_release(self) -> None:
        values = self._folder / "values.json"
        values.write_text(json.dumps(self.values))
        self.cluster.helm(
            "install", RELEASE, CHART, f"--namespace={NAMESPACE}", f"--values={values}"
        )

    def remove_release(self) -> None:
        self.cluster.helm("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait")

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl(f"--namespace={NAMESPACE}", *words)

    def api(self, token: str | None = None) -> Api:
        """Returns a client with this token, or with that of the owner."""
        return Api(Connection(self.url, token or self._owner_token, "test"))

    def part_of(self, node: str) -> str:
        """Returns the name of the newest Pod of the DaemonSet on a node."""
        pods = (self.cluster.get(self.pods) or {"items": []})["items"]
        names = {
            pod["metadata"]["creationTimestamp"]: str(pod["metadata"]["name"])
            for pod in pods
            if pod["spec"].get("nodeName") == node and pod["metadata"]["name"] != f"{RELEASE}-0"
        }
        return names[max(names)]

    def has_ready_part(self, node: str) -> bool:
        part = self.cluster.get(f"{self.pods}/{self.part_of(node)}")
        return part is not None and is_ready(part)

    def logs(self) -> str:
        """Returns the last lines of the service and of its parts on the nodes."""
        return self.kubectl("logs", f"--selector={_SELECTED}", "--prefix", "--tail=60")

    def remove(self) -> None:
        self.remove_release()
        # Until then, the service may still stop Pods.
        self.cluster.wait_gone(f"{self.pods}/{RELEASE}-0")
        for pod in (self.cluster.get(GAMES) or {"items": []})["items"]:
            # Else a Pod that was being stopped would wait for the service.
            if pod["metadata"].get("finalizers"):
                patch = '--patch={"metadata": {"finalizers": null}}'
                words = ("patch", "pod", pod["metadata"]["name"], "--namespace=hosting-games")
                self.cluster.kubectl(*words, "--type=merge", patch)
        self.cluster.kubectl("delete", "namespace", "hosting-games", NAMESPACE)

    def _create_certificates(self) -> None:
        folder = self._folder / "certificates"
        nodes = [f"--node={name}" for name in self.cluster.nodes]
        command = [sys.executable, "-m", "pyservice", "certificates", f"--out={folder}", *nodes]
        subprocess.run(command, cwd=ROOT, env=clean_environment(), check=True)
        for secret, path in (
            ("hosting-service", folder / "service"),
            *((f"hosting-node-{name}", folder / name) for name in self.cluster.nodes),
        ):
            files = [f"--from-file={path / name}" for name in ("ca.crt", "tls.crt", "tls.key")]
            self.kubectl("create", "secret", "generic", secret, *files)

    def _wait_ready(self) -> None:
        count = 1 + len(self.cluster.nodes)
        end = time.monotonic() + START_S
        while True:
            found = (self.cluster.get(self.pods) or {"items": []})["items"]
            if len(found) == count and all(map(is_ready, found)) and self._is_reached():
                return
            if time.monotonic() > end:
                raise AssertionError(f"{self.kubectl('describe', 'pods')}\n{self.logs()}")
            time.sleep(0.1)

    def _is_reached(self) -> bool:
        """Returns whether nodes forward connections to the API, which begins after its Pod is ready."""
        address = (self.cluster.address_of(self.node), _HTTP_PORT)
        with self.cluster.network():
            try:
                socket.create_connection(address, PATIENCE_S).close()
            except OSError:
                return False
        return True


class ApiSource(Protocol):
    def api(self, token: str | None = None) -> Api:
        """Returns a client with this token, or with that of the owner."""
        ...


class PublishedGame:
    """A published game. Its lobbies repeat what a player sends."""

    def __init__(
        self, service: ApiSource, modes: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """`modes` has the fields of each game mode that differ from those of MODE."""
        self._service = service
        self._cloud = service.api()
        self._publish({MODE: {}} if modes is None else modes)
        path = f"/cloud/games/{GAME}/namespaces/prod/tokens/public"
        self._players = service.api(str(self._cloud.post(path)["token"]))

    def find(self, mode: str = MODE) -> Answer:
        return self._players.post("/matchmaker/lobbies/find", {"game_modes": [mode]})

    def find_again(self, mode: str = MODE, patience_s: float = START_S) -> Answer:
        """Repeats a find that was refused or not answered, as a game does."""
        end = time.monotonic() + patience_s
        while True:
            try:
                return self.find(mode)
            except CommandFailed:
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)

    def end(self, lobby_id: str) -> None:
        """Ends a lobby, as its operator does."""
        self._cloud.delete(f"/cloud/games/{GAME}/matchmaker/lobbies/{lobby_id}")

    def record_with_problem(self, lobby_id: str) -> Answer:
        """Waits until the record of a lobby says why the lobby failed."""
        until(lambda: {"failure", "problem"} <= self.record(lobby_id).keys())
        return self.record(lobby_id)

    def records(self) -> dict[str, Answer]:
        """Returns the records of all lobbies, running or ended, by id."""
        path = f"/cloud/games/{GAME}/namespaces/prod/logs/lobbies"
        return {one["lobby_id"]: one for one in self._cloud.pages(path, "lobbies", limit=256)}

    def is_admitted(self, found: Answer) -> bool:
        """Returns whether a player gets in to the lobby that `find` returned."""
        try:
            with self.player(found, timeout_s=2.0):
                return True
        except (OSError, AssertionError):
            return False

    def record(self, lobby_id: str) -> Answer:
        """Returns the record of a lobby."""
        path = f"/cloud/games/{GAME}/namespaces/prod/logs/lobbies/{lobby_id}"
        lobby: Answer = self._cloud.get(path)["lobby"]
        return lobby

    def log(self, lobby_id: str, stream: str = "std_out") -> list[str]:
        path = f"/cloud/games/{GAME}/matchmaker/lobbies/{lobby_id}/logs"
        lines: list[str] = self._cloud.get(path, stream=stream)["lines"]
        return lines

    def words(self, lobby_id: str) -> list[str]:
        """Returns the first word of each line that a lobby has written."""
        return [line.partition(" ")[0] for line in self.log(lobby_id)]

    @contextmanager
    def player(self, found: Answer, timeout_s: float = PATIENCE_S) -> Iterator[socket.socket]:
        """Connects a player to the lobby that `find` returned."""
        port, token = found["ports"]["game"], found["player"]["token"].encode()
        address = (port["hostname"], port["port"])
        with socket.create_connection(address, timeout_s) as connection:
            connection.sendall(token)
            assert connection.recv(65_536) == token
            yield connection

    def play(self, found: Answer, players: int = 1) -> None:
        """A player connects, sends something, gets the same back, and leaves.

        Meanwhile the lobby has this number of players.
        """
        lobby_id = found["lobby"]["lobby_id"]
        with self.player(found) as connection:
            connection.sendall(b"shoot")
            assert connection.recv(65_536) == b"shoot"
            until(lambda: self.record(lobby_id)["connected_count"] == players)
        until(lambda: self.record(lobby_id)["connected_count"] == players - 1)

    def _publish(self, modes: Mapping[str, Mapping[str, Any]]) -> None:
        (group, *_) = self._cloud.get("/cloud/games")["groups"]
        described = {"display_name": GAME, "name_id": GAME}
        self._cloud.post("/cloud/games", {"developer_group_id": group["group_id"], **described})

        def cloud(method: str, path: str, body: Any) -> Any:
            assert method == "POST"
            return self._cloud.post(path, body)

        build_id = game_programs.upload_build(cloud, GAME, game_programs.server_archive())
        docker = {
            "image_id": build_id,
            "env": {"PLAY": "guests only-players any-address"},
            "ports": {"game": {"protocol": "tcp"}},
        }
        usual = {"tier": "basic-1d16", "max_players": 4, "docker": docker}
        config = {"matchmaker": {"game_modes": {name: {**usual, **modes[name]} for name in modes}}}
        version = {"display_name": "1.0.0", "config": config}
        version_id = self._cloud.post(f"/cloud/games/{GAME}/versions", version)["version_id"]
        path = f"/cloud/games/{GAME}/namespaces/prod/version"
        self._cloud.put(path, {"version_id": version_id})
