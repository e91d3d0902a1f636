"""SIGHUP for edge-guard: reload of certificates, limits and times.

After an error the old ones stay. Connected players stay in any case.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyservice.edge_guard.process import EDGE_GUARD_BINARY
from pyservice.settings import SettingsError, load
from tests.support import game_programs
from tests.support.certificates import Certificates
from tests.support.data_plane_service import UNLIMITED
from tests.support.edge_guard_service import EdgeGuardService, is_reached, with_server
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full


class ReloadedService(EdgeGuardService):
    @property
    def path(self) -> Path:
        return self.folder / "service.toml"

    def write(self, *certificates: dict[str, Any], https: str | None = None, **limits: int) -> None:
        lines = ["[edge]"] + ([f'https = "{https}"'] if https else [])
        lines += ["[edge.limits]"] + [f"{name} = {value}" for name, value in limits.items()]
        for certificate in certificates:
            lines.append("[[edge.certificates]]")
            lines += [f"{name} = {json.dumps(value)}" for name, value in certificate.items()]
        self.path.write_text("\n".join(lines))

    def start(self, *words: str) -> ReloadedService:
        super().start("--config", str(self.path), *words)
        return self

    def reload_edge_guard(self) -> None:
        before = len(self.events("settings of edge-guard reloaded"))
        self.signal(signal.SIGHUP)
        until(lambda: len(self.events("settings of edge-guard reloaded")) > before)

    def failed_reload(self, event: str = "settings not reloaded") -> str:
        before = len(self.events(event))
        self.signal(signal.SIGHUP)
        until(lambda: len(self.events(event)) > before)
        return "\n".join(one["problem"] for one in self.events(event)[before:])

    def config(self) -> Any:
        return json.loads((self.data_dir / "edge" / "config.json").read_text())

    def certificate(self, name: str) -> dict[str, Any]:
        folder = self.folder / name
        subprocess.run([str(EDGE_GUARD_BINARY), "ca", str(folder), name], check=True)
        pair = {"cert": str(folder / "server.pem"), "key": str(folder / "server.key")}
        return {"server_names": [name], **pair}

    def is_known(self, name: str) -> bool:
        trust = ssl.create_default_context(cafile=str(self.folder / name / "ca.pem"))
        try:
            host, _, port = self.edge()["https"].rpartition(":")
            with (
                socket.create_connection((host, int(port)), PATIENCE_S) as connection,
                trust.wrap_socket(connection, server_hostname=name),
            ):
                return True
        except (OSError, ValueError):
            return False


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[ReloadedService]:
    folder = tmp_path / "h"
    folder.mkdir()
    service = ReloadedService(folder, settings={**UNLIMITED, "runtime": game_programs.SETTINGS})
    yield service
    service.close()


def echo(player: socket.socket) -> bytes:
    try:
        player.sendall(b"hello")
        return player.recv(100)
    except OSError:
        return b""


def connected_player(address: tuple[str, int]) -> socket.socket:
    """Connects a player. Retries while the slots of disconnected players are still taken."""

    def entered() -> socket.socket | None:
        player = socket.create_connection(address, PATIENCE_S)
        if echo(player):
            return player
        player.close()
        return None

    connection = until(entered)
    assert connection is not None
    return connection


def all_respond(*players: socket.socket) -> bool:
    return [echo(player) for player in players] == [b"hello"] * len(players)


def test_added_certificate_is_loaded_and_survives_a_restart(operated: ReloadedService) -> None:
    first, second = operated.certificate("one.example"), operated.certificate("two.example")
    operated.write(first, https="127.0.0.1:0")
    operated.start()
    until(lambda: operated.is_known("one.example"))
    assert not operated.is_known("two.example")
    pid = operated.edge_pid()
    operated.write(first, second, https="127.0.0.1:0")
    operated.reload_edge_guard()
    until(lambda: operated.is_known("two.example"))
    assert operated.is_known("one.example")
    assert operated.edge_pid() == pid, "edge-guard was not replaced"
    os.kill(pid, signal.SIGKILL)
    until(lambda: operated.edge_pid() not in (0, pid) and operated.is_known("two.example"))
    assert operated.is_known("one.example")


@pytest.mark.parametrize("role", ["all", "edge-guard"])
def test_start_with_an_expired_certificate_serves_the_others(
    operated: ReloadedService, role: str
) -> None:
    good, old = operated.certificate("one.example"), operated.certificate("two.example")
    Certificates(Path(old["cert"]).parent).expire("two.example")
    operated.write(good, old, https="127.0.0.1:0")
    if role == "edge-guard":
        operated.role, operated.listeners = ("--role", role), ()
    operated.start()
    until(lambda: operated.is_known("one.example"))
    assert not operated.is_known("two.example")
    first, *_ = [event["problem"] for event in operated.events("configuration warning")]
    assert "edge.certificates.1: " in first
    assert "two.example/server.pem expired on " in first
    assert first.endswith("; clients reject it")


def test_new_limits_apply_without_a_restart_or_disconnects(operated: ReloadedService) -> None:
    operated.write(connections_per_address=2)
    address = with_server(operated)
    pid = operated.edge_pid()
    with connected_player(address) as first, connected_player(address) as second:
        assert not is_reached(address), "two players are connected"
        operated.write(connections_per_address=3, stream_idle_ms=3_600_000)
        operated.reload_edge_guard()
        assert operated.config()["limits"]["connections_per_address"] == 3
        assert operated.config()["timeouts"]["stream_idle_ms"] == 3_600_000
        until(lambda: is_reached(address))
        assert all_respond(first, second)
        operated.kill()
        assert all_respond(first, second), "edge-guard runs without the service"
        operated.start()
        until(lambda: operated.events("edge-guard found"))
        assert operated.edge_pid() == pid
        assert all_respond(first, second)


def test_invalid_settings_are_logged_and_change_nothing(operated: ReloadedService) -> None:
    good = operated.certificate("one.example")
    operated.write(good, https="127.0.0.1:0", connections=1_000)
    operated.start()
    until(lambda: operated.is_known("one.example"))
    before = operated.config()

    operated.write(good, https="127.0.0.1:0", connections=0)
    assert "edge.limits.connections: " in operated.failed_reload()
    broken = operated.certificate("two.example")
    Path(broken["cert"]).write_text("no certificate")
    operated.write(good, broken, https="127.0.0.1:0", connections=2_000)
    assert "two.example/server.pem: has no certificate" in operated.failed_reload()
    Certificates(Path(broken["cert"]).parent).expire("two.example")
    operated.write(good, broken, https="127.0.0.1:0", connections=2_000)
    assert "two.example/server.pem expired on " in operated.failed_reload()
    assert not operated.events("reloaded"), "the planes took nothing either"
    operated.write(connections=2_000)
    assert "edge.certificates: " in operated.failed_reload("settings of edge-guard not reloaded")

    assert operated.config() == before
    assert sorted(path.name for path in (operated.data_dir / "edge").glob("*config*")) == [
        "config.json"
    ]
    pid = operated.edge_pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: operated.edge_pid() not in (0, pid) and operated.is_known("one.example"))
    operated.write(good, https="127.0.0.1:0", connections=2_000)
    operated.reload_edge_guard()
    assert operated.config()["limits"]["connections"] == 2_000


@pytest.mark.fast
def test_every_limit_out_of_range_is_reported() -> None:
    limits = {
        "connections": 0,
        "connections_per_address": 10_000_001,
        "datagram_sessions": "many",
        "datagram_sessions_per_route": 0,
        "stream_idle_ms": 999,
        "datagram_idle_ms": 3_600_001,
        "speed": 1,
    }
    with pytest.raises(SettingsError) as raised:
        load({"edge": {"limits": limits}}, environ={})
    assert [problem.name for problem in raised.value.problems] == [
        f"edge.limits.{name}" for name in limits
    ]
