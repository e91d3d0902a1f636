"""Proxies and servers of the `edge` benchmark, on free loopback ports.

Edge-guard, HAProxy and nginx run on the service's core. The native server behind them runs on the load's core.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import string
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import httpx

from bench.machine import LOAD_CORE, SERVER_CORE, Bench, cpu_seconds, on_core
from bench.processes import end, memory_kib, wait_for
from bench.results import WrongAnswer
from pyservice.edge_guard.process import EDGE_GUARD_BINARY

HOST: Final = "bench.example"
BODY_BYTES: Final = 1_024
_START_S: Final = 20.0
_POLL_S: Final = 0.01
_NGINX: Final = """
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  default_type {media_type};
  keepalive_requests 1000000000;
  keepalive_timeout 300s;
  client_body_temp_path {folder};
  proxy_temp_path {folder};
  fastcgi_temp_path {folder};
  uwsgi_temp_path {folder};
  scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    open_file_cache max=10;
    location / {{ {answer} }}
  }}
}}
"""
_NGINX_TEXT_MAX: Final = 2_000
"""A longer body is in a file, because a line of the configuration is limited."""
_HAPROXY: Final = """
global
  nbthread 1
  maxconn 2000
  tune.pipesize 262144
defaults
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend players
  mode {mode}
  bind 127.0.0.1:{port} backlog 4096
  {passed_on}
  default_backend server
backend server
  mode {mode}
  {kept}
  server one 127.0.0.1:{backend}
"""
_PASSED_ON: Final = (
    "option forwardfor",
    "http-request set-header X-Forwarded-Proto http",
    "http-request set-header X-Forwarded-Host %[req.hdr(host)]",
)


def fixed_body() -> str:
    return "".join(islice(cycle(string.ascii_lowercase), BODY_BYTES))


def missing() -> str | None:
    lacking = [name for name in ("haproxy", "nginx") if shutil.which(name) is None]
    return f"apt-get install {' '.join(lacking)}" if lacking else None


def has_haproxy() -> bool:
    return shutil.which("haproxy") is not None


@dataclass(frozen=True, slots=True)
class Proxy:
    address: str
    pid: int

    @property
    def cpu_s(self) -> Callable[[], float]:
        return partial(cpu_seconds, self.pid)


@dataclass(frozen=True, slots=True)
class Guard:
    folder: Path
    pid: int
    ports: Mapping[str, int]

    def proxy(self, name: str) -> Proxy:
        return Proxy(f"127.0.0.1:{self.ports[name]}", self.pid)

    def get(self, path: str) -> str:
        transport = httpx.HTTPTransport(uds=str(self.folder / "admin.sock"))
        with httpx.Client(transport=transport, base_url="http://edge") as client:
            return client.get(path).text

    def figure(self, name: str) -> float:
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"hosting_edge_{name} "):
                return float(line.rpartition(" ")[2])
        raise WrongAnswer(f"edge-guard reports no {name}")

    def memory_kib(self) -> int:
        return memory_kib(self.pid)


def free_port() -> int:
    while True:
        with (
            socket.create_server(("127.0.0.1", 0)) as stream,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
            contextlib.suppress(OSError),
        ):
            port = int(stream.getsockname()[1])
            datagrams.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def server(bench: Bench) -> Iterator[str]:
    with _native(bench, LOAD_CORE, "serve") as proxy:
        yield proxy.address


@contextlib.contextmanager
def forwarder(bench: Bench, target: str) -> Iterator[Proxy]:
    """Runs a minimal UDP forwarder, to measure the cost of the machine itself."""
    with _native(bench, SERVER_CORE, "forward", "--to", target) as bare:
        yield bare


@contextlib.contextmanager
def _native(bench: Bench, core: int, what: str, *words: str) -> Iterator[Proxy]:
    ready = bench.scratch(f"edge-{what}.ready")
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        [bench.binaries / "bench-edge", what, *words, "--ready", str(ready)],
        preexec_fn=on_core(core),
    )
    try:
        wait_for(ready, process)
        yield Proxy(ready.read_text(), process.pid)
    finally:
        end(process)
        ready.unlink(missing_ok=True)


@contextlib.contextmanager
def nginx(bench: Bench, body: str, media_type: str = "text/plain") -> Iterator[Proxy]:
    """Runs nginx with one worker. It answers each request with `body`."""
    port = free_port()
    folder = bench.scratch("nginx")
    answer = f"return 200 '{body}';"
    if len(body) > _NGINX_TEXT_MAX:
        file = bench.scratch("nginx.body")
        file.write_text(body)
        answer = f"root {file.parent}; try_files /{file.name} =404;"
    config = _NGINX.format(folder=folder, port=port, answer=answer, media_type=media_type)
    with _started(folder, config, port) as start:
        yield start("nginx", "-p", str(folder), "-e", "stderr", "-c")


@contextlib.contextmanager
def haproxy(bench: Bench, mode: str, backend: int) -> Iterator[Proxy]:
    """Runs HAProxy with the features of edge-guard: the same headers, splice(2) and pipe size."""
    port = free_port()
    is_http = mode == "http"
    config = _HAPROXY.format(
        mode=mode,
        port=port,
        backend=backend,
        passed_on="\n  ".join(_PASSED_ON) if is_http else "",
        kept="http-reuse always" if is_http else "option splice-request\n  option splice-response",
    )
    with _started(bench.scratch("haproxy"), config, port) as start:
        yield start("haproxy", "-db", "-f")


@contextlib.contextmanager
def _started(folder: Path, config: str, port: int) -> Iterator[Callable[..., Proxy]]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = folder / "config"
    path.write_text(config)
    processes = []

    def start(*command: str) -> Proxy:
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, str(path)], stdout=log, stderr=log, preexec_fn=on_core(SERVER_CORE)
            )
        processes.append(process)
        _until(lambda: _takes(port), process, lambda: (folder / "log").read_text(errors="replace"))
        return Proxy(f"127.0.0.1:{port}", process.pid)

    try:
        yield start
    finally:
        for process in processes:
            end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _takes(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _until(
    is_there: Callable[[], bool], process: subprocess.Popen[bytes], read_output: Callable[[], str]
) -> None:
    end_s = time.monotonic() + _START_S
    while not is_there():
        if process.poll() is not None or time.monotonic() > end_s:
            raise WrongAnswer(f"{process.args!r} did not start:\n{read_output()}")
        time.sleep(_POLL_S)


@contextlib.contextmanager
def edge_guard(
    bench: Bench, routes: Mapping[str, tuple[str, str]], **settings: Any
) -> Iterator[Guard]:
    """Runs edge-guard with one thread. The routes (protocol and backend by name) are loaded from disk."""
    folder = bench.scratch("edge-guard")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ports = {name: free_port() for name in routes}
    route_records = [
        {
            "owner": "bench",
            "port_name": name,
            "protocol": protocol,
            "port": ports[name],
            "is_tls": protocol in ("https", "tcp_tls"),
            "backend": backend,
        }
        for name, (protocol, backend) in routes.items()
    ]
    state = {"epoch": 1, "version": 1, "newest_epoch": 1, "routes": route_records}
    (folder / "routes").write_text(json.dumps(state))
    config = {
        "folder": str(folder),
        "source": str(folder / "nobody.sock"),
        "workers": 1,
        **settings,
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(EDGE_GUARD_BINARY), str(path)],
            stdout=output,
            stderr=output,
            preexec_fn=on_core(SERVER_CORE),
        )
    guard = Guard(folder, process.pid, ports)
    try:
        _until(lambda: _has_all(guard, len(route_records)), process, log.read_text)
        yield guard
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _has_all(guard: Guard, count: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return bool(json.loads(guard.get("/readyz?verbose"))["routes_listening"] == count)
    return False


@contextlib.contextmanager
def certificate(bench: Bench) -> Iterator[tuple[Path, Sequence[Mapping[str, Any]]]]:
    folder = bench.scratch("certificates")
    subprocess.run([str(EDGE_GUARD_BINARY), "ca", str(folder), HOST], check=True)
    files = {"cert": str(folder / "server.pem"), "key": str(folder / "server.key")}
    try:
        yield folder / "ca.pem", [{"server_names": [HOST], **files}]
    finally:
        shutil.rmtree(folder)
