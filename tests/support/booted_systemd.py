"""systemd as process 1 of its own namespaces, with the units of `deploy/systemd`.

The units run as shipped, apart from the paths and addresses of the test. A file system in memory covers `/srv`,
where the service is installed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.tracked_files import ROOT
from tests.support.unified_groups import unified_groups
from tests.support.unprivileged_python import USER
from tests.support.waiting import until

UNITS: Final = ROOT / "deploy" / "systemd"
_SYSTEMD: Final = Path("/lib/systemd/systemd")
_HOME: Final = Path("/srv/hosting")
BACKUPS: Final = _HOME / "backups"
_PATHS: Final = {
    "/opt/hosting": str(_HOME),
    "/etc/hosting": f"{_HOME}/etc",
    "/var/lib/hosting": f"{_HOME}/data",
    "/var/backups/hosting": str(BACKUPS),
}
_TARGETS: Final = [
    "basic",
    "multi-user",
    "network-online",
    "shutdown",
    "sockets",
    "sysinit",
    "timers",
]
_PROGRAM: Final = f"""#!/bin/sh
exec {sys.executable} -m pyservice "$@"
"""
_DROP_IN: Final = f"""[Service]
# Python and the sources can be in a home folder or in /tmp.
ProtectHome=tmpfs
BindReadOnlyPaths={ROOT} {sys.prefix} {sys.base_prefix}
StandardError=append:{_HOME}/data/log
"""
_BOOT: Final = """
echo 0 >"$group/cgroup.procs"
exec unshare --mount --pid --fork --uts --ipc --cgroup --kill-child sh -euc '
mount --make-rprivate /
mount -t proc proc /proc
mount --bind -o ro /proc/sys /proc/sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /srv
mkdir -p "$home/.venv/bin" "$home/etc" "$home/data" "$home/backups"
cp "$folder/pyservice" "$home/.venv/bin/pyservice"
for name in etc data backups; do mount --bind "$folder/$name" "$home/$name"; done
for name in passwd group; do mount --bind "$folder/$name" /etc/$name; done
mount -t tmpfs tmpfs /run
cp -r "$folder/units" /run/units
mount -t tmpfs -o mode=755 tmpfs /etc/systemd
exec "$systemd" --system --unit=basic.target --log-target=console --show-status=0
'
"""


class BootedSystemd:
    def __init__(self, folder: Path, group: Path) -> None:
        self.folder = folder
        self.data_dir = folder / "data" / "data"
        self._variables = {
            "folder": str(folder),
            "group": str(group),
            "home": str(_HOME),
            "systemd": str(_SYSTEMD),
        }
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("backups", "data", "etc", "units"):
            (folder / name).mkdir(parents=True)
        program = folder / "pyservice"
        program.write_text(_PROGRAM)
        program.chmod(0o755)
        for name, entry in {
            "passwd": f"hosting:x:{USER}:{USER}::{_HOME}/data:/bin/false\n",
            "group": f"hosting:x:{USER}:\n",
        }.items():
            (folder / name).write_text(Path("/etc", name).read_text() + entry)

    def install(self, addresses: Mapping[str, str], *names: str) -> None:
        """Copies units. `addresses` replaces addresses of socket units."""
        for target in _TARGETS:
            (self.folder / "units" / f"{target}.target").write_text("[Unit]\n")
        for name in names:
            text = (UNITS / name).read_text()
            for old, new in {**_PATHS, **addresses}.items():
                text = text.replace(old, new)
            path = self.folder / "units" / name
            path.write_text(text)
            if path.suffix == ".service":
                folder = path.with_name(f"{name}.d")
                folder.mkdir()
                (folder / "test.conf").write_text(_DROP_IN)

    def add_drop_in(self, unit: str, name: str) -> None:
        text = (UNITS / name).read_text()
        (self.folder / "units" / f"{unit}.d" / name).write_text(text)

    def boot(self) -> None:
        """Skips the test if systemd does not start in namespaces."""
        with (self.folder / "systemd.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-euc", _BOOT],
                env={
                    **os.environ,
                    **self._variables,
                    "container": "lxc",
                    "SYSTEMD_UNIT_PATH": "/run/units",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def is_over() -> bool:
            assert self._process is not None
            return self._process.poll() is not None or self.is_active("basic.target")

        until(is_over)
        if self._process.poll() is not None:
            reason = (self.folder / "systemd.log").read_text()[-500:]
            pytest.skip(f"systemd does not start in a namespace here: {reason}")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        entered = ["nsenter", "--target", *children[:1], "--all", *words]
        return subprocess.run(entered, capture_output=True, text=True, check=False)

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pyservice(self, *words: str) -> subprocess.CompletedProcess[str]:
        config = ("--config", f"{_HOME}/etc/service.toml")
        program = f"{_HOME}/.venv/bin/pyservice"
        return self.run("env", f"--chdir={_HOME}/data", program, *words, *config)

    def systemctl(self, *words: str) -> str:
        result = self.run("systemctl", "--no-pager", *words)
        assert result.returncode == 0, f"{result.stderr}\n{self.log()}"
        return result.stdout.strip()

    def is_active(self, unit: str) -> bool:
        return self.run("systemctl", "is-active", "--quiet", unit).returncode == 0

    def status_of_main(self, unit: str) -> dict[str, str]:
        """Returns the fields of `/proc/<PID>/status` of the main process of a unit."""
        pid = self.systemctl("show", "--property=MainPID", "--value", unit)
        text = self.run("cat", f"/proc/{pid}/status").stdout
        return {
            name: value.strip()
            for name, _, value in (line.partition(":") for line in text.splitlines())
        }

    def log(self) -> str:
        logs = [self.folder / "systemd.log", self.folder / "data" / "log"]
        return "\n".join(log.read_text()[-8000:] for log in logs if log.exists())

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def booted_systemd(folder: Path) -> Iterator[BootedSystemd]:
    """Provides a systemd that is not booted yet. Skips the test without root, systemd or namespaces."""
    if os.geteuid() != 0:
        pytest.skip("only root can run the units of root")
    if not _SYSTEMD.exists() or shutil.which("systemctl") is None:
        pytest.skip("no systemd: apt-get install systemd")
    with unified_groups() as groups:
        groups.make("machine")
        systemd = BootedSystemd(folder, groups.path("machine"))
        try:
            yield systemd
        finally:
            systemd.close()
