"""An unchanged game server from Debian: it needs only a build and `$(PORT_…)` arguments."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.full_service import FullService, running
from tests.support.game_programs import SETTINGS, upload_build
from tests.support.upload_files import tar
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = shutil.which("bzfs", path="/usr/games:/usr/bin")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(PROGRAM is None, reason="no BZFlag server: apt-get install bzflag-server"),
]


@pytest.fixture
def full_service(tmp_path: Path) -> Iterator[FullService]:
    with running(FullService(tmp_path / "s", runtime=SETTINGS)) as full_service:
        yield full_service


def version_of(address: tuple[str, int]) -> bytes | None:
    """Returns the version in a BZFlag server's greeting, or None without a server."""
    try:
        with socket.create_connection(address, 5) as connection:
            connection.sendall(b"BZFLAG\r\n\r\n")
            return connection.recv(8) or None
    except OSError:
        return None


def test_unmodified_bzflag_server_starts_serves_and_ends(full_service: FullService) -> None:
    headers = {"authorization": f"Bearer {full_service.cloud_token}"}

    def cloud(method: str, path: str, body: Any = None) -> Any:
        url = f"http://{full_service.ready['http']}{path}"
        answer = httpx.request(method, url, json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    game = {"developer_group_id": full_service.group_id, "display_name": "BZFlag"}
    game_id = cloud("POST", "/cloud/games", game)["game_id"]
    manifest = (ROOT / "examples" / "bzflag" / "server.json").read_bytes()
    build = upload_build(cloud, game_id, tar({"server.json": manifest}))
    path = f"/games/{game_id}/environments/prod/servers"
    desired = {
        "datacenter": "local",
        "network": {"ports": {"game": {"protocol": "tcp"}}},
        "resources": {"cpu": 200, "memory": 256},
        "runtime": {"build": build},
        "tags": {"map": "default"},
    }
    server = cloud("POST", path, desired)["server"]
    port = server["network"]["ports"]["game"]
    address = port["public_hostname"], port["public_port"]
    assert (until(lambda: version_of(address)) or b"").startswith(b"BZFS")
    cloud("DELETE", f"{path}/{server['id']}?override_kill_timeout=2000")

    def ended_lobby() -> Any:
        record = cloud("GET", f"{path}/{server['id']}")["server"]
        return record if record["status"] == "destroyed" else None

    assert "exit_code" in (until(ended_lobby) or {})
    assert version_of(address) is None
    assert json.loads(manifest)["command"][0] == "bzfs", "no other program is between"
