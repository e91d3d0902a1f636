"""Folder of one run: the only interface between the service and a keeper process (`native/keeper`).

The folder has a state file, a log and a command FIFO. A keeper locks the state file as long as it
lives. A restarted service can therefore find every run.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pyservice.runtime.filesystem import FileChange, apply_changes
from pyservice.runtime.network_isolation import NetworkRules

Isolation = Literal["none", "user", "namespace", "landlock", "processes"]
"""Isolation of a run. `processes` isolates nothing: it makes a container end with its OCI runtime.
"""
RunStatus = Literal["starting", "running", "stopping", "ended"]
LogStream = Literal["std_out", "std_err", "service"]
LogSelection = LogStream | Literal["all"]

FOLDER_TAKEN: Final = 75
"""Exit code of a keeper if its folder is locked or was used before."""

_SPEC: Final = "spec"
_WITHDRAWN: Final = "withdrawn"
_NOTE: Final = "note"
_READ_BYTES: Final = 4_096
_LINE_MAX: Final = 1_000
"""Characters of a line that the service adds to a log."""
_NUMBERS: Final = (
    *("uid", "gid", "kill_timeout_ms", "log_bytes_max", "reserve_bytes", "memory_max_bytes"),
    *("log_lines_per_s", "log_bytes_per_s"),
    "nice",
)
STREAMS: Final[Mapping[str, LogStream]] = {
    "o": "std_out",
    "O": "std_out",
    "e": "std_err",
    "E": "std_err",
    "s": "service",
}
CURSOR: Final = "c"
"""Letter of a cursor, which is no line of a program. See `copied_log`."""


class KeeperFailed(Exception):
    pass


@dataclass(frozen=True, slots=True)
class KeeperSpec:
    id: str
    command: Sequence[str]
    workdir: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    isolation: Isolation = "none"
    uid: int = 0
    gid: int = 0
    read: Sequence[Path] = ()
    write: Sequence[Path] = ()
    scratch: Path | None = None
    """Writable path that gets a file system of its own. None: no path."""
    scratch_bytes: int = 0
    scratch_template: Path | None = None
    """Formatted image of the scratch folder. None: a tmpfs."""
    kill_timeout_ms: int = 30_000
    log_bytes_max: int = 64 << 20
    log_lines_per_s: int = 0
    log_bytes_per_s: int = 0
    reserve_bytes: int = 0
    memory_max_bytes: int = 0
    """Memory limit that the keeper enforces. 0 if a control group enforces it."""
    cgroups: Sequence[Path] = ()
    """`tasks` files of control groups of version 1."""
    cgroup_v2: Path | None = None
    """Folder of the control group of version 2."""
    machine_id: str = ""
    """Content of `/etc/machine-id`, as the program sees it."""
    cgroup_views: Sequence[tuple[Path, Path]] = ()
    """Files of control groups that show the program its limits: mount point, and path of the host."""
    oom_counter: Path | None = None
    nice: int = 0
    notify: Path | None = None
    network: NetworkRules | None = None
    """None: the network is not isolated."""
    note: str = ""

    def content(self) -> bytes:
        records = [("id", self.id), ("isolation", self.isolation), ("workdir", str(self.workdir))]
        records.append(("machine_id", self.machine_id))
        records += [("command", word) for word in self.command]
        records += [("env", f"{name}={value}") for name, value in self.env.items()]
        records += [("read", str(path)) for path in self.read]
        records += [("write", str(path)) for path in self.write]
        if self.scratch is not None:
            records.append(("scratch", str(self.scratch)))
            records.append(("scratch_bytes", str(self.scratch_bytes)))
        if self.scratch_template is not None:
            records.append(("scratch_template", str(self.scratch_template)))
        records += [("cgroup", str(path)) for path in self.cgroups]
        if self.cgroup_v2 is not None:
            records.append(("cgroup_v2", str(self.cgroup_v2)))
        records += [("cgroup_view", f"{to} {path}") for to, path in self.cgroup_views]
        records += [(name, str(getattr(self, name))) for name in _NUMBERS]
        optional = (("oom_counter", self.oom_counter), ("notify", self.notify))
        records += [(name, str(path)) for name, path in optional if path is not None]
        records += self.network.records() if self.network is not None else ()
        records.append((_NOTE, self.note))
        if any("\0" in value for _, value in records):
            raise ValueError("the command, a variable or a path contains a NUL")
        return b"".join(f"{name}={value}".encode() + b"\0" for name, value in records)


@dataclass(frozen=True, slots=True)
class KeeperState:
    """State of a run, as its keeper reported it.

    Times are microseconds since the Unix epoch, or 0 before the start or end.
    """

    status: RunStatus
    keeper_pid: int = 0
    pid: int = 0
    started_us: int = 0
    ended_us: int = 0
    exit_code: int | None = None
    reason: str = ""
    message: str = ""

    @property
    def started_ms(self) -> int | None:
        return self.started_us // 1000 if self.pid else None


class LogLine(NamedTuple):
    """Line of a log. `position` is the log position after this line."""

    position: int
    time_us: int
    stream: LogStream
    goes_on: bool
    text: str


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    def exists(self) -> bool:
        return self.path.exists()

    def folder_changes(self) -> list[FileChange]:
        return [FileChange("folder", self.path, 0o711), FileChange("folder", self.scratch, 0o700)]

    def spec_change(self, spec: KeeperSpec) -> FileChange:
        return FileChange("file", f"{self.path}/{_SPEC}", 0o600, spec.content())

    def note(self) -> str | None:
        for name in (_SPEC, _WITHDRAWN):
            with contextlib.suppress(FileNotFoundError):
                *_, last, rest = [b"", *_read(f"{self.path}/{name}").split(b"\0")]
                has_note = last.startswith(f"{_NOTE}=".encode()) and not rest
                return last.decode().partition("=")[2] if has_note else None
        return None

    def scratch_template(self) -> Path | None:
        """Returns the formatted image that the spec names, or None. Raises OSError."""
        return next(map(Path, self.spec_values("scratch_template")), None)

    def spec_values(self, name: str) -> list[str]:
        """Returns all values of a key in the spec. Raises OSError."""
        records = (record.partition(b"=") for record in _read(f"{self.path}/{_SPEC}").split(b"\0"))
        return [os.fsdecode(value) for key, _, value in records if key == name.encode()]

    def prepare(self, spec: KeeperSpec) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        apply_changes([*self.folder_changes(), self.spec_change(spec)])

    def start(self, keeper: Path) -> bool:
        """Starts the keeper of a run, and waits until the program runs or has failed.

        Returns False if the run was started before. Raises KeeperFailed.
        """
        process = subprocess.run(
            [str(keeper), str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
            check=False,
        )
        if process.returncode == FOLDER_TAKEN:
            return False
        if process.returncode:
            raise KeeperFailed(process.stderr.decode(errors="replace").strip())
        return True

    def state(self) -> KeeperState | None:
        """Returns the newest state in the run's state file, or None if none is readable."""
        try:
            return self._state()
        except (OSError, KeyError, ValueError):
            return None

    def _state(self) -> KeeperState | None:
        text = _read(f"{self.path}/state").decode(errors="replace")
        *_, last, _ = ["", *text.split("\n\n")]
        if not last:
            return None
        fields = dict(line.split("=", 1) for line in last.split("\n"))
        code = fields.get("exit_code")
        status: RunStatus = fields["status"]  # type: ignore[assignment]
        return KeeperState(
            status,
            int(fields["keeper_pid"]),
            int(fields["pid"]),
            int(fields["started_us"]),
            int(fields["ended_us"]),
            None if code is None else int(code),
            fields.get("reason", ""),
            fields.get("message", ""),
        )

    def was_started(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(f"{self.path}/state").st_size > 0
        return False

    def is_kept(self) -> bool:
        try:
            descriptor = os.open(f"{self.path}/state", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def holders(self) -> list[int]:
        """Returns the PIDs that may write the state file: those of the keeper and its forked
        children.

        Ignores open files with other names, because a `stat` on a failed disk can hang.
        """
        with contextlib.suppress(FileNotFoundError):
            state = os.stat(f"{self.path}/state")
            own = os.getpid()
            others = (int(name) for name in os.listdir("/proc") if name.isdigit())
            return [pid for pid in others if pid != own and _may_write(pid, state)]
        return []

    def withdraw(self) -> None:
        """Prevents the start of the run, except by a keeper that has already locked the state file.
        Raises OSError.
        """
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{self.path}/{_SPEC}", f"{self.path}/{_WITHDRAWN}")

    def is_withdrawn(self) -> bool:
        return not os.path.exists(f"{self.path}/{_SPEC}")

    def stop(self, timeout_ms: int) -> bool:
        """Requests that the keeper sends SIGTERM now, and SIGKILL after the timeout.

        After several requests, the shortest timeout applies. Returns False if no keeper is alive.
        """
        return self._send(f"stop {timeout_ms}\n")

    def follow(self, for_ms: int) -> bool:
        return self._send(f"follow {for_ms}\n")

    def send_line(self, text: str) -> bool:
        """Requests that the keeper adds a line to `service` in the log.

        Returns False if no keeper is alive. A keeper of an earlier release adds no line.
        """
        return self._send(f"log {log_text(text)}\n")

    def _send(self, line: str) -> bool:
        try:
            descriptor = os.open(self.path / "control", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return False
            raise
        try:
            # The line is shorter than PIPE_BUF, so the write is atomic.
            os.write(descriptor, line.encode(errors="replace"))
        except (BrokenPipeError, BlockingIOError):
            return False
        finally:
            os.close(descriptor)
        return True

    def lines(self, after: int = 0) -> Iterator[LogLine]:
        for start, path in self.segments():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as segment:
                if start + os.fstat(segment.fileno()).st_size <= after:
                    continue
                at = max(start, after)
                segment.seek(at - start)
                for raw in segment:
                    if not raw.endswith(b"\n"):
                        break
                    at += len(raw)
                    if (line := _line(raw, at)) is not None:
                        yield line

    def add_line(self, text: str, time_us: int) -> None:
        """Appends a line to `service` in the log.

        Call this method only after the keeper has ended, because the keeper counts the bytes of the
        log. Does nothing after an incomplete line.
        """
        line = f"{time_us} s {log_text(text)}\n".encode(errors="replace")
        segments = self.segments()
        path = segments[-1][1] if segments else self.path / "log" / "0"
        self.path.mkdir(mode=0o711, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if not size or os.pread(descriptor, 1, size - 1) == b"\n":
                os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def has_log(self) -> bool:
        return bool(self.segments())

    def end(self) -> int:
        return log_end(self.segments())

    def segments(self) -> list[tuple[int, Path]]:
        with contextlib.suppress(FileNotFoundError):
            return sorted((int(path.name), path) for path in (self.path / "log").iterdir())
        return []


def log_text(text: str) -> str:
    """Returns a text as the service writes it into one line of a log."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown[:_LINE_MAX]


def _read(path: str) -> bytes:
    """Returns a file's content.

    Avoids `Path` and file objects for speed, because each state change of a run reads files.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while block := os.read(descriptor, _READ_BYTES):
            content += block
        return content
    finally:
        os.close(descriptor)


def _may_write(pid: int, file: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                link = f"/proc/{pid}/fd/{name}"
                if os.readlink(link).endswith("/state") and os.path.samestat(os.stat(link), file):
                    fields = _read(f"/proc/{pid}/fdinfo/{name}").split()
                    if int(fields[fields.index(b"flags:") + 1], 8) & os.O_ACCMODE:
                        return True
    return False


def log_end(segments: Sequence[tuple[int, Path]]) -> int:
    if not segments:
        return 0
    start, path = segments[-1]
    with contextlib.suppress(FileNotFoundError):
        return start + path.stat().st_size
    return start


def _line(raw: bytes, position: int) -> LogLine | None:
    """Returns None for a cursor."""
    time_us, letter, text = raw[:-1].split(b" ", 2)
    stream = letter.decode()
    if stream == CURSOR:
        return None
    return LogLine(
        position, int(time_us), STREAMS[stream], stream.isupper(), text.decode(errors="replace")
    )


_NOTICE_READ_BYTES: Final = 65_536


@dataclass(slots=True)
class DroppedOutput:
    """Output that the rate limits of logs dropped since the start of the service."""

    line_count: int = 0
    byte_count: int = 0


class KeeperNotices:
    """FIFO to which all keepers write lines `<run id> <event>`.

    A line is only a hint. The run folder has the actual state. Only the number of dropped lines and
    bytes is nowhere else.
    """

    def __init__(self, path: Path, on_notice: Callable[[str], None]) -> None:
        self._path = path
        self._on_notice = on_notice
        self._descriptor = -1
        self._partial_line = b""
        self.dropped = DroppedOutput()

    def open(self) -> None:
        try:
            if not stat.S_ISFIFO(self._path.lstat().st_mode):
                self._path.unlink()
                os.mkfifo(self._path, 0o600)
        except FileNotFoundError:
            os.mkfifo(self._path, 0o600)
        # Without a writer in this process, the FIFO would always be at its end.
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        try:
            block = os.read(self._descriptor, _NOTICE_READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._partial_line = (self._partial_line + block).split(b"\n")
        for line in lines:
            match line.split():
                case [_, b"dropped", line_count, byte_count]:
                    with contextlib.suppress(ValueError):
                        added = DroppedOutput(int(line_count), int(byte_count))
                        self.dropped.line_count += added.line_count
                        self.dropped.byte_count += added.byte_count
                case [run_id, *_]:
                    self._on_notice(run_id.decode(errors="replace"))
