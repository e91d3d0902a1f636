"""Edge-guard as seen from `serve`: found running, or started, or replaced by the one that these settings mean; started
again when it ends by itself. It outlives this process, so it is a child only by chance: what tells is its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from pyservice.durable import write_file
from pyservice.observability.logging import get_logger
from pyservice.settings import Settings, SettingsError

BINARY: Final = Path(__file__).parent.parent / "bin" / "hosting-edge-guard"

_PROCESSES: Final = Path("/proc")
_NAME_MAX: Final = 15
"""Of a process, as the kernel keeps it."""
_ENDED: Final = ("Z", "X")
_LOOK_S: Final = 0.02
_START_S: Final = 10.0
_END_S: Final = 5.0
_HURRIED_END_S: Final = 0.5
"""Who has not ended so long after a signal is deaf; so long where somebody is in a hurry."""
_AGAIN_S: Final = (0.1, 0.5, 2.0, 5.0)
_LOG_MAX_BYTES: Final = 1 << 20
_CHECK_S: Final = 10.0
_READ_AGAIN: Final = ("certificates", "limits", "timeouts")
"""What a running one takes anew. The rest of its settings is that of our start."""

_log = get_logger("serve")


class EdgeGuard:
    """The one of this data directory."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings]) -> None:
        """`reread` is `Launch`'s."""
        self._folder = settings.data_dir.resolve() / "edge"
        self._config = _config(settings, self._folder)
        self._reread = reread
        self._reload_due = asyncio.Event()
        self._is_vital = settings.domains.job is not None
        self._pid = 0
        self._binary: list[int] = []
        """Which one runs: by now another one may be in its place."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the one that serves; 0: none."""
        return self._holder()

    @property
    def has_routes(self) -> bool:
        """Whether somebody may be led by it, now or as soon as it runs."""
        try:
            return bool(json.loads((self._folder / "routes").read_bytes())["routes"])
        except (FileNotFoundError, ValueError, KeyError):
            return False

    async def keep(
        self, stop: asyncio.Event, needed: asyncio.Event, failed: Callable[[], None]
    ) -> None:
        """Until `stop`: one of these settings serves. Where it would lead nobody it waits until it is `needed`. With a
        domain nothing is reached without it: `failed` is called when it does not begin to serve.
        """
        if not self.has_routes and not self._is_vital:
            await _either(stop, needed)
        tried, is_first = 0, True
        while not stop.is_set():
            try:
                await self._read_again()
                await self._ensure()
            except (OSError, TimeoutError, EdgeGuardFailed) as error:
                _log.error("edge-guard does not serve", error=str(error))
                if is_first and self._is_vital:
                    failed()
                    return
            else:
                tried, is_first = 0, False
                await self._until_it_ends(stop)
                if not stop.is_set():
                    _log.error("edge-guard ended; starting it again")
            await _pause(stop, _AGAIN_S[min(tried, len(_AGAIN_S) - 1)])
            tried += 1

    def reload(self) -> None:
        """Certificates, limits and times are taken from the settings of now, as soon as `keep` comes to it."""
        self._reload_due.set()

    async def end(self, hurry: asyncio.Event) -> bool:
        """Ends it, and whoever it took over from. At once: connections are cut. False: it was deaf, and is killed."""
        # The first drains, the second hurries.
        pid = self._signal(signal.SIGTERM, signal.SIGTERM)
        if not pid or await self._has_ended(pid, hurry):
            return True
        _log.error("edge-guard is deaf; killing it", pid=pid)
        self._signal(signal.SIGKILL)
        await self._has_ended(pid, hurry)
        return False

    async def _has_ended(self, pid: int, hurry: asyncio.Event) -> bool:
        """Whether it does in time."""
        left_s = _END_S
        while self._holder() == pid and left_s > 0:
            left_s = min(left_s, _HURRIED_END_S if hurry.is_set() else _END_S) - _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self._reap()
        return self._holder() != pid

    async def _ensure(self) -> None:
        """Raises OSError, EdgeGuardFailed."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._binary = _version()
        wanted = self._wanted()
        started = self._folder / "started.json"
        with contextlib.suppress(FileNotFoundError):
            if self._holder() and started.read_text() == wanted:
                self._pid = self._holder()
                _log.info("edge-guard found", pid=self._pid)
                return
        path = self._folder / "config.json"
        write_file(path, _text_of(self._config))
        before = self._holder()
        self._process = self._start(path)
        await self._started()
        write_file(started, wanted.encode())
        self._pid = self._holder()
        _log.info("edge-guard started", pid=self._pid, replaced=before or None)

    def _wanted(self) -> str:
        """By what a later service knows that one of these settings runs."""
        return json.dumps({"config": self._config, "binary": self._binary}, sort_keys=True)

    async def _read_again(self) -> None:
        """When somebody asked for it. A mistake is logged, and nothing changes."""
        if not self._reload_due.is_set():
            return
        self._reload_due.clear()
        try:
            config = await self._checked(self._reread())
            write_file(self._folder / "config.json", _text_of(config))
            self._config = config
            # It was not found yet, or is about to be replaced: what it was started with is not for us to say.
            if self._pid and self._pid == self._holder():
                write_file(self._folder / "started.json", self._wanted().encode())
        except SettingsError as error:
            for problem in error.problems:
                _log.error("settings of edge-guard not reloaded", problem=str(problem))
        except (OSError, TimeoutError, EdgeGuardFailed) as error:
            _log.error("settings of edge-guard not reloaded", problem=str(error))
        else:
            self._signal(signal.SIGHUP)
            _log.info("settings of edge-guard reloaded")

    async def _checked(self, settings: Settings) -> dict[str, Any]:
        """The settings of now with what may change of these. Raises OSError, TimeoutError, EdgeGuardFailed."""
        fresh = _config(settings, self._folder)
        config = {**self._config, **{name: fresh[name] for name in _READ_AGAIN}}
        if bool(config["certificates"]) != bool(self._config["certificates"]):
            # Lobbies are told whether there is TLS at a port by what the data plane was started with.
            raise EdgeGuardFailed("edge.certificates: the first ones, and none, need a restart")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trial = self._folder / "config.new"
        try:
            write_file(trial, _text_of(config))
            await _check(trial)
        finally:
            trial.unlink(missing_ok=True)
        return config

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        with self._open_log() as log:
            return _begin(path, "--replace", log, is_apart=True)

    async def _started(self) -> None:
        """Until it serves: the lock alone may be that of one that is about to fail."""
        assert self._process is not None
        async with asyncio.timeout(_START_S):
            while not await self._is_serving(self._process.pid):
                if self._process.poll() is not None:
                    raise EdgeGuardFailed(
                        f"ended with {self._process.returncode}: {self._last_line()}"
                    )
                await asyncio.sleep(_LOOK_S)

    async def _is_serving(self, pid: int) -> bool:
        if self._holder() != pid:
            return False
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._folder / "admin.sock"))
        except OSError:
            return False
        try:
            writer.write(b"GET /readyz HTTP/1.0\r\nHost: edge-guard\r\n\r\n")
            line = await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()
        return line.split(b" ")[1:2] == [b"200"]

    def _open_log(self) -> Any:
        path = self._folder / "log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > _LOG_MAX_BYTES:
                path.rename(path.with_suffix(".old"))
        return path.open("ab")

    def _last_line(self) -> str:
        lines = (self._folder / "log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    def _holder(self) -> int:
        """Whoever has the lock; 0: nobody. Trying to take it would be in the way of one that starts."""
        path = self._folder / "LOCK"
        try:
            found = path.stat()
            text = path.read_text().strip()
        except FileNotFoundError:
            return 0
        # Who has just taken it may not have signed yet: the number may be that of somebody else by now.
        return int(text) if text and _has_locked(int(text), found) else 0

    def _signal(self, *numbers: signal.Signals) -> int:
        """Whom it went to; 0: nobody has the lock."""
        pid = self._holder()
        if not pid:
            return 0
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                # From here on the number cannot become another process's unseen.
                if self._holder() != pid:
                    return 0
                for number in numbers:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
        return pid

    async def _until_it_ends(self, stop: asyncio.Event) -> None:
        try:
            with _end_of(self._pid) as ended:
                while not (ended.is_set() or stop.is_set()):
                    await self._read_again()
                    await _either(ended, stop, self._reload_due)
        except OSError:
            return  # it has ended already
        self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.poll()


class EdgeGuardFailed(Exception):
    """It did not start; says why."""


def _has_locked(pid: int, lock: os.stat_result) -> bool:
    """Whether a process has this file open with the lock that was taken by it, or by whoever gave it the file."""
    process = _PROCESSES / str(pid)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        try:
            descriptors = sorted(int(path.name) for path in (process / "fd").iterdir())
            return any(_is_lock(process, str(number), lock) for number in descriptors)
        except PermissionError:
            # One with rights of its own, such as to low ports, is looked into by nobody. Its name is for all.
            name, _, about = (process / "stat").read_text().partition("(")[2].rpartition(")")
            return name == BINARY.name[:_NAME_MAX] and about.split()[0] not in _ENDED
    return False


def _is_lock(process: Path, descriptor: str, lock: os.stat_result) -> bool:
    with contextlib.suppress(FileNotFoundError):
        is_file = os.path.samestat((process / "fd" / descriptor).stat(), lock)
        return is_file and "FLOCK" in (process / "fdinfo" / descriptor).read_text()
    return False


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


async def _pause(stop: asyncio.Event, pause_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await stop.wait()


def _text_of(config: dict[str, Any]) -> bytes:
    return json.dumps(config, indent=1).encode()


async def _check(path: Path) -> None:
    """Whether edge-guard takes these settings, with the files that they name. Raises OSError, TimeoutError,
    EdgeGuardFailed.
    """
    with tempfile.TemporaryFile() as said:
        process = _begin(path, "--check", said)
        try:
            with _end_of(process.pid) as ended:
                async with asyncio.timeout(_CHECK_S):
                    await ended.wait()
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            said.seek(0)
            raise EdgeGuardFailed(said.read().decode(errors="replace").strip().replace("\n", "; "))


def _begin(
    path: Path, how: str, said: IO[bytes], *, is_apart: bool = False
) -> subprocess.Popen[bytes]:
    """With these settings. `is_apart`: it outlives us."""
    # On the loop: a thread would outlive the main one when we are killed, and our children would take us for alive.
    return subprocess.Popen(
        [str(BINARY), str(path), how],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        env={},
        cwd="/",
        start_new_session=is_apart,
    )


@contextlib.contextmanager
def _end_of(pid: int) -> Iterator[asyncio.Event]:
    """Becomes set when the process ends. Raises ProcessLookupError: there is none, and nobody waits for it."""
    descriptor = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        yield ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _version() -> list[int]:
    found = BINARY.stat()
    return [found.st_size, found.st_mtime_ns]


def _config(settings: Settings, folder: Path) -> dict[str, Any]:
    edge, limits, domains = settings.edge, settings.edge.limits, settings.domains
    config: dict[str, Any] = {
        "folder": str(folder),
        "source": str(settings.admin_socket.resolve()),
        "bind": edge.bind,
        "advertised": edge.address,
        "proxies": [str(network) for network in edge.proxies],
        "certificates": [
            {
                "server_names": list(one.server_names),
                "cert": str(one.cert.resolve()),
                "key": str(one.key.resolve()),
            }
            for one in edge.certificates
        ],
        "backends": [],
        "nice": edge.nice,
        "limits": {
            "connections": limits.connections,
            "connections_per_route": limits.connections_per_route,
            "connections_per_address": limits.connections_per_address,
            "datagram_sessions": limits.datagram_sessions,
            "datagram_sessions_per_route": limits.datagram_sessions_per_route,
            "datagram_sessions_per_address": limits.datagram_sessions_per_address,
        },
        "timeouts": {
            "stream_idle_ms": limits.stream_idle_ms,
            "datagram_idle_ms": limits.datagram_idle_ms,
        },
    }
    if edge.workers is not None:
        config["workers"] = edge.workers
    for name, address in (("http", edge.http), ("https", edge.https)):
        if address is not None:
            config[name] = str(address)
    if domains.main is not None:
        config["backends"].append(
            {
                "hosts": [domains.main],
                "address": f"unix:{settings.edge_http_socket.resolve()}",
                "proxy_protocol": True,
            }
        )
    hosts = [] if domains.cdn is None else [domains.cdn, f"*.{domains.cdn}"]
    if settings.cdn_url is not None:
        # A host of its own: where files are uploaded to, and pictures are.
        hosts.append(urlsplit(settings.cdn_url).hostname or "")
    if hosts:
        config["backends"].append(
            {
                "hosts": hosts,
                "address": f"unix:{settings.edge_cdn_socket.resolve()}",
                "proxy_protocol": False,
            }
        )
    return config
