"""A supervised service with a game server behind edge-guard."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.support import game_programs
from tests.support.supervised_service import SupervisedService
from tests.support.waiting import until


class EdgeGuardService(SupervisedService):
    def edge_pid(self) -> int:
        path = self.data_dir / "edge" / "LOCK"
        return int(path.read_text().partition("\n")[0] or 0) if path.exists() else 0

    def edge(self) -> Any:
        """Returns the state that edge-guard reports. Raises OSError or ValueError."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self.data_dir / "edge" / "admin.sock"))
            admin.sendall(b"GET /readyz?verbose HTTP/1.0\r\nHost: edge\r\n\r\n")
            answer = b""
            while piece := admin.recv(65_536):
                answer += piece
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    def is_edge_serving(self) -> bool:
        try:
            return bool(self.edge()["is_ready"])
        except (OSError, ValueError):
            return False


def with_server(service: EdgeGuardService) -> tuple[str, int]:
    service.start()
    return made_server(service, service.ready())


def made_server(service: EdgeGuardService, ready: dict[str, Any]) -> tuple[str, int]:
    token = Path(ready["cloud_token_file"]).read_text().strip()

    def cloud(method: str, path: str, body: Any = None) -> Any:
        return service.good(method, path, body, token)

    game = {"developer_group_id": ready["owner_group_id"], "display_name": "Kept"}
    game_id = cloud("POST", "/cloud/games", game)["game_id"]
    build = game_programs.upload_build(cloud, game_id, game_programs.server_archive())
    fields = {
        "datacenter": "local",
        "network": {"ports": {"game": {"protocol": "tcp"}}},
        "resources": {"cpu": 100, "memory": 128},
        "runtime": {"build": build},
        "tags": {},
    }
    server = cloud("POST", f"/games/{game_id}/environments/prod/servers", fields)["server"]
    port = server["network"]["ports"]["game"]
    address = port["public_hostname"], port["public_port"]
    until(lambda: is_reached(address))
    return address


def is_reached(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, 5) as connection:
            connection.sendall(b"hello")
            return connection.recv(100) == b"hello"
    except OSError:
        return False
