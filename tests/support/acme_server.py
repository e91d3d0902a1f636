"""Real ACME server for tests: Pebble with its DNS server, compiled once into `build/`."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pyservice.edge_guard.process import EDGE_GUARD_BINARY
from tests.support.loopback import OWN_ADDRESS
from tests.support.waiting import PATIENCE_S, until

FOLDER: Final = Path(__file__).resolve().parents[2] / "build" / "pebble" / "bin"
_NO_WAITS: Final = {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_AUTHZREUSE": "0"}


@dataclass
class AcmeServer:
    """ACME directory that validates every domain at `OWN_ADDRESS`. Call `start` after its creation."""

    folder: Path
    validity_s: int = 3_600
    _port: int = field(default_factory=lambda: _free_ports(1)[0])
    _management_port: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the service. The folder has the authority of the directory's certificate."""
        if not self.root.exists():
            command = [str(EDGE_GUARD_BINARY), "ca", str(self.folder), OWN_ADDRESS]
            subprocess.run(command, check=True)
        return {
            "contact": "ops@example.com",
            "directory": f"https://{OWN_ADDRESS}:{self._port}/dir",
            "root": str(self.root),
        }

    @property
    def root(self) -> Path:
        return self.folder / "ca.pem"

    def start(self, tls_port: int) -> None:
        """Starts the directory. It connects to `tls_port` for the validation of a domain."""
        if not (FOLDER / "pebble").exists():
            pytest.skip("no ACME server: there is no Go of this system that builds it")
        dns_port, self._management_port, unused_port = _free_ports(3)
        config = {
            "listenAddress": f"{OWN_ADDRESS}:{self._port}",
            "managementListenAddress": f"{OWN_ADDRESS}:{self._management_port}",
            "certificate": str(self.folder / "server.pem"),
            "privateKey": str(self.folder / "server.key"),
            "httpPort": unused_port,
            "tlsPort": tls_port,
            "retryAfter": {"authz": 1, "order": 1},
            "profiles": {"default": {"description": "", "validityPeriod": self.validity_s}},
        }
        path = self.folder / "pebble.json"
        path.write_text(json.dumps({"pebble": config}))
        dns = f"{OWN_ADDRESS}:{dns_port}"
        listeners = (
            f"-{name}=" for name in ("doh", "http01", "https01", "tlsalpn01", "management")
        )
        self._spawn(
            "pebble-challtestsrv",
            "-dnsserver",
            dns,
            "-defaultIPv4",
            OWN_ADDRESS,
            *listeners,
            "-defaultIPv6=",
        )
        self._spawn("pebble", "-config", str(path), "-dnsserver", dns, "-strict")
        until(self._is_ready)

    def _spawn(self, program: str, *words: str) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(FOLDER / program), *words], stdout=log, stderr=log, env=_NO_WAITS
            )
        self._processes.append(process)

    def _is_ready(self) -> bool:
        assert all(process.poll() is None for process in self._processes), self.log()
        with contextlib.suppress(httpx.HTTPError):
            return bool(self.issuer())
        return False

    def issuer(self) -> str:
        """Returns the root certificate of the issued certificates in PEM."""
        url = f"https://{OWN_ADDRESS}:{self._management_port}/roots/0"
        return httpx.get(url, verify=_trust(self.root), timeout=PATIENCE_S).text

    def log(self) -> str:
        return "".join(path.read_text()[-3000:] for path in self.folder.glob("*.log"))

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()


def _trust(path: Path) -> Any:
    import ssl

    return ssl.create_default_context(cafile=str(path))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((OWN_ADDRESS, 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def acme_server(folder: Path, validity_s: int = 3_600) -> Iterator[AcmeServer]:
    folder.mkdir(parents=True, exist_ok=True)
    server = AcmeServer(folder, validity_s)
    try:
        yield server
    finally:
        server.stop()
