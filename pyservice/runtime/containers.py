"""Containers for images and bundles. An OCI runtime runs each container under a keeper process.

The keeper has its own PID namespace. If the keeper, the OCI runtime or the container dies, the
kernel therefore ends the other two. The container shares this namespace. As PID 1 of an own
namespace, its program would ignore signals without handlers.

The service restricts every container, whatever the build requests: no capabilities, a user
namespace, and no new privileges. Containers have no network namespace. Their control group
isolates their network as that of archives.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyservice.durable_files import write_file
from pyservice.runtime.build_manifests import IDS_MAX
from pyservice.runtime.root_filesystem import ContainerProgram, container_root_uid
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.scratch_folders import ScratchLimits
from pyservice.settings.user_ids import DEFAULT_CONTAINER_USER_IDS

KINDS: Final = ("docker_image", "oci_bundle")
RUNTIME: Final = "crun"
"""The OCI runtime. It leaves a container in the control group that isolates its network. runc would
move the container into another group.
"""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TMP_BYTES: Final = 64 << 20

BUNDLE: Final = "bundle"
_LOG: Final = "runtime.log"
_NO_EXEC: Final = '{"msg":"exec container process'
_MOUNT_POINTS: Final = ("/mnt", "/media", "/srv", "/opt", "/run")
_SHARED_FILES: Final = ("/etc/hosts", "/etc/resolv.conf")
_MASKED: Final = (
    *("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/scsi"),
    *("/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats"),
)
_READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_SECCOMP_PROFILE: Final = Path(__file__).with_name("seccomp_profile.json")
PROCESSES_MAX: Final = 4_096
_COUNTED_BY_NAMESPACE: Final = (5, 14)
"""Since this Linux version the process limit counts for each user namespace. Before, all containers
would share one limit.
"""

_SCRIPT: Final = """
set -eu
place=$1 runtime=$2 lower=$3 scratch=$4 bundle=$5 log=$6
(umask 077; : >"$log")
exec 3>&2 2>"$log"
mount -t tmpfs -o mode=0755,size=16m,nosuid,nodev none "$place"
cd "$place"
mkdir lower own root proc state
mount --bind "$lower" lower
# The keeper has mounted the file system of the scratch folder there, if its size has a limit.
mount --bind "$scratch" own
mkdir own/upper own/work
chown --reference=lower own/upper
chmod --reference=lower own/upper
mount -t overlay -o lowerdir=lower,upperdir=own/upper,workdir=own/work,nosuid,nodev none root
mount -t proc -o nosuid,nodev,noexec,hidepid=2 none proc
# The runtime makes no control groups and need not see any: it would judge how this machine has them.
if [ -d /sys/fs/cgroup ]; then mount -t tmpfs -o ro none /sys/fs/cgroup; fi
exec 2>&3 3>&-
: >"$log"
# The runtime gives the standard streams to the container's user. That must not be the null device of the machine.
: >input
exec <input "$runtime" --root "$place/state" --log "$log" --log-format json --cgroup-manager=disabled \\
  run --bundle "$bundle" container
"""


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    runtime: Path
    mount_point: str
    """Host folder that each container covers with its own mounts."""
    limits: ScratchLimits | None = None
    """Limits of the scratch folder, which has the overlay's upper layer. None: no limit."""
    user_ids: range = DEFAULT_CONTAINER_USER_IDS.numbers
    """Host ids of the users in containers if the service is root."""

    def command(self, lower: Path, folder: Path, scratch: Path) -> list[str]:
        words = ["/bin/sh", "-c", _SCRIPT, "container"]
        words += [self.mount_point, str(self.runtime), str(lower), str(scratch)]
        return [*words, str(folder / BUNDLE), str(folder / _LOG)]

    def write_bundle(
        self,
        folder: Path,
        inside: ContainerProgram,
        command: Sequence[str],
        variables: Mapping[str, str],
        shared: Sequence[str] = (),
    ) -> None:
        bundle = folder / BUNDLE
        bundle.mkdir(mode=0o700)
        config = _oci_config(self.mount_point, inside, command, variables, shared)
        _map_users(config, inside, container_root_uid(self.user_ids))
        write_file(bundle / "config.json", json.dumps(config).encode())


def mount_point_outside(*paths: Path) -> str | None:
    free = (
        mount_point
        for mount_point in _MOUNT_POINTS
        if os.path.isdir(mount_point)
        and not any(path.is_relative_to(mount_point) for path in paths)
    )
    return next(free, None)


def runtime_failure(folder: RunFolder) -> str | None:
    if not (folder.path / BUNDLE).exists():
        return None
    lines: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        lines += (folder.path / _LOG).read_text(errors="replace").splitlines()
    messages = [_message(line) for line in lines]
    # The process that becomes the program can report an error only in the log.
    last = collections.deque(folder.lines(folder.segments()[-1][0]), 1) if folder.segments() else ()
    messages += [_message(line.text) for line in last if line.text.startswith(_NO_EXEC)]
    return next((message for message in reversed(messages) if message), None)


def _message(line: str) -> str | None:
    try:
        messages = json.loads(line)
        return str(messages["msg"]) if messages["level"] == "error" else None
    except (ValueError, KeyError, TypeError):
        return line.strip() or None


def _oci_config(
    mount_point: str,
    inside: ContainerProgram,
    command: Sequence[str],
    variables: Mapping[str, str],
    shared: Sequence[str],
) -> dict[str, Any]:
    sets = ("bounding", "effective", "inheritable", "permitted", "ambient")
    no_rights: dict[str, list[str]] = {name: [] for name in sets}
    linux: dict[str, Any] = {
        "namespaces": [{"type": namespace} for namespace in ("mount", "ipc", "uts")],
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
        "seccomp": _seccomp(),
    }
    return {
        "ociVersion": "1.0.2",
        "hostname": "server",
        "root": {"path": f"{mount_point}/root", "readonly": inside.is_readonly},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "env": [f"{name}={value}" for name, value in variables.items()],
            "cwd": inside.workdir,
            "noNewPrivileges": True,
            "rlimits": process_limits(os.uname().release),
            "capabilities": no_rights,
        },
        "mounts": _mounts(mount_point, shared),
        "linux": linux,
    }


def _map_users(config: dict[str, Any], inside: ContainerProgram, root_uid: int | None) -> None:
    """Gives a container a user namespace and the user of its program, if the service is root."""
    if root_uid is None:
        return
    user = {"uid": inside.uid, "gid": inside.gid, "additionalGids": list(inside.groups)}
    config["process"]["user"] = user
    config["linux"]["namespaces"].append({"type": "user"})
    mapping = [{"containerID": 0, "hostID": root_uid, "size": IDS_MAX}]
    config["linux"] |= {"uidMappings": mapping, "gidMappings": mapping}


def process_limits(release: str) -> list[dict[str, Any]]:
    """Returns the OCI setting that limits the number of processes of a container.

    The result is empty if the kernel would apply the limit to all containers together.
    """
    version = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    if version < _COUNTED_BY_NAMESPACE:
        return []
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    most = PROCESSES_MAX if most == resource.RLIM_INFINITY else min(most, PROCESSES_MAX)
    return [{"type": "RLIMIT_NPROC", "hard": most, "soft": most}]


def _mounts(mount_point: str, shared: Sequence[str]) -> list[dict[str, Any]]:
    usual = ["nosuid", "nodev"]
    in_memory = [*usual, "mode=1777", f"size={TMP_BYTES}"]
    mounts = [
        _mount("/proc", "bind", f"{mount_point}/proc", "rbind", "noexec", *usual),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "noexec", "mode=755", "size=64k"),
        _mount("/dev/shm", "tmpfs", "shm", "noexec", *in_memory),
        _mount("/tmp", "tmpfs", "tmpfs", *in_memory),
    ]
    files = (path for path in (*_SHARED_FILES, *shared) if os.path.exists(path))
    return mounts + [_mount(path, "bind", path, "rbind", "ro", *usual) for path in files]


def _mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}


def _seccomp() -> dict[str, Any]:
    """Returns the profile that the keeper applies to archives too."""
    profile = json.loads(_SECCOMP_PROFILE.read_text())
    rules = [{key: rule[key] for key in rule if key != "comment"} for rule in profile["syscalls"]]
    return {key: profile[key] for key in ("defaultAction", "defaultErrnoRet")} | {"syscalls": rules}
