"""Trials that find an isolation of game servers that works on this machine.

The result depends on the kernel, on an outer container, and on the rights of the service.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from pyservice.observability.logging import get_logger
from pyservice.runtime.build_sandbox import SANDBOX_UID
from pyservice.runtime.containers import (
    PATH,
    RUNTIME,
    ContainerRuntime,
    mount_point_outside,
    runtime_failure,
)
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.filesystem import apply_changes, remove_tree
from pyservice.runtime.network_isolation import NetworkPolicy
from pyservice.runtime.root_filesystem import ContainerProgram, container_root_uid
from pyservice.runtime.run_folder import Isolation, KeeperFailed, KeeperSpec, RunFolder
from pyservice.runtime.scratch_folders import (
    SCRATCH_BYTES_MAX,
    SCRATCH_BYTES_MIN,
    NoTemplate,
    ScratchLimits,
    possible_kinds,
)
from pyservice.settings.user_ids import DEFAULT_CONTAINER_USER_IDS

IsolationSetting = Literal["auto", "user", "namespace", "landlock", "none"]

_NETWORK_TRIAL: Final = "network"
_TRIAL_PROGRAM: Final = ContainerProgram((), (), {}, "/", 0, 0, (), "/", is_readonly=False)
_PROGRAMS: Final = ("/usr", "/bin", "/lib", "/lib64")
_SIGNALS: Final = (
    "game servers can signal all processes of this user, the service's too: "
    "Linux 6.12 or later prevents it"
)
_ABSTRACT_SOCKETS: Final = (
    "game servers can connect to abstract Unix sockets of the machine: "
    "Linux 6.12 or later prevents it"
)
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_VERSION_FLAG: Final = 1
_LANDLOCK_WITH_SCOPES: Final = 6
"""First version of Landlock that restricts abstract Unix sockets, of Linux 6.12."""
_SIGNALLED_STATUS: Final = 3
_TRAVERSE_MODE: Final = 0o011
_TRIAL_TIMEOUT_S: Final = 10.0
_POLL_INTERVAL_S: Final = 0.002

_log = get_logger("runtime")


async def choose_isolation(
    setting: IsolationSetting, keeper: Path, folder: Path, shared_paths: Sequence[Path]
) -> Isolation | None:
    """Returns the strongest isolation that `setting` allows and that works, or None."""
    if setting == "none":
        return "none"
    candidates: tuple[Isolation, ...] = ("namespace", "landlock")
    if os.geteuid() == 0:
        candidates = ("user", *candidates)
    for isolation in candidates if setting == "auto" else (setting,):
        trial = RunFolder(folder / f".trial-{isolation}")
        modes = _open_run_folders(folder) if needs_open_folders(isolation) else {}
        problem = await asyncio.to_thread(
            _isolation_problem, trial, isolation, keeper, shared_paths
        )
        if problem is None or (problem == _SIGNALS and setting == isolation):
            return isolation
        for path, mode in modes.items():
            path.chmod(mode)
        _log.warning("isolation does not work", isolation=isolation, problem=problem)
    return None


def needs_open_folders(isolation: Isolation) -> bool:
    """Returns whether each game server has a user of its own, and sees the paths of the host.

    These users must then be able to traverse the folders of the service.
    """
    return isolation == "landlock" and os.geteuid() == 0


def open_folders(*folders: Path) -> dict[Path, int]:
    """Lets all users of the machine traverse the folders, but not list them. Raises OSError.

    Returns the previous modes of the changed folders.
    """
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folders}
    closed = {path: mode for path, mode in modes.items() if mode & _TRAVERSE_MODE != _TRAVERSE_MODE}
    for path, mode in closed.items():
        path.chmod(mode | _TRAVERSE_MODE)
    return closed


def _open_run_folders(folder: Path) -> dict[Path, int]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return open_folders(folder.parent, folder)


async def unenforced_by_isolation(
    isolation: Isolation | None, keeper: Path, folder: Path, shared_paths: Sequence[Path]
) -> list[str]:
    if isolation != "landlock":
        return []
    trial = RunFolder(folder / f".trial-{isolation}")
    problem = await asyncio.to_thread(_isolation_problem, trial, isolation, keeper, shared_paths)
    return [problem] if problem == _SIGNALS else []


def landlock_version() -> int:
    """Returns the version of Landlock, or 0 if the kernel has none."""
    libc = ctypes.CDLL(None)
    none, size = ctypes.c_void_p(None), ctypes.c_size_t(0)
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, none, size, _LANDLOCK_VERSION_FLAG)
    return max(int(version), 0)


def open_abstract_sockets(
    isolation: Isolation | None, has_containers: bool, landlock: int
) -> list[str]:
    """Returns a problem if game servers can connect to abstract Unix sockets outside of the run.

    `landlock` is its version. Under the isolation `landlock`, seccomp refuses Unix sockets.
    """
    is_affected = has_containers or isolation in ("user", "namespace")
    return [_ABSTRACT_SOCKETS] if is_affected and landlock < _LANDLOCK_WITH_SCOPES else []


async def choose_scratch(
    isolation: Isolation | None,
    keeper: Path,
    folder: Path,
    shared_paths: Sequence[Path],
    bytes_max: int,
) -> tuple[ScratchLimits, str]:
    """Returns the limits of scratch folders that work, and why the preferred kind does not."""
    problem = ""
    if isolation in ("user", "namespace"):
        for kind in possible_kinds()[:-1]:
            limits = ScratchLimits(kind, bytes_max, folder)
            trial = RunFolder(folder / f".trial-{kind}")
            kind_problem = await asyncio.to_thread(
                _isolation_problem, trial, isolation, keeper, shared_paths, limits
            )
            if kind_problem is None:
                return limits, problem
            problem = kind_problem
            _log.warning("scratch folder does not work", kind=kind, problem=problem)
    return ScratchLimits("folder", bytes_max, folder), problem


async def choose_container_runtime(
    setting: Path | None,
    keeper: Path,
    folder: Path,
    bytes_max: int = SCRATCH_BYTES_MAX,
    user_ids: range = DEFAULT_CONTAINER_USER_IDS.numbers,
) -> tuple[ContainerRuntime | None, str]:
    """Returns the OCI runtime with the first scratch folder that works and an empty text, or None and
    the reason.
    """
    runtime = setting or _installed_runtime()
    if runtime is None:
        return None, "crun is not installed"
    mount_point = mount_point_outside(folder, runtime)
    if mount_point is None:
        return None, "no folder can be a mount point: each contains the OCI runtime or the data"
    problem = ""
    for kind in possible_kinds():
        limits = ScratchLimits(kind, bytes_max, folder)
        containers = ContainerRuntime(runtime, mount_point, limits, user_ids)
        trial = RunFolder(folder / f".trial-{runtime.name}-{kind}")
        trial_problem = await asyncio.to_thread(_container_problem, trial, containers, keeper)
        if trial_problem is None:
            return containers, ""
        problem = f"{runtime}: {trial_problem}"
        _log.warning("OCI runtime does not work", scratch=kind, problem=problem)
    return None, problem


async def network_isolation_problem(
    groups: ControlGroups, keeper: Path, folder: Path
) -> str | None:
    """Returns why the kernel cannot isolate the network of game servers, or None if it can."""
    if groups.network is None:
        return "no control group of version 2 can be created"
    group = groups.network / _NETWORK_TRIAL
    trial = RunFolder(folder / f".trial-{_NETWORK_TRIAL}")
    shutil.rmtree(trial.path, ignore_errors=True)
    spec = KeeperSpec(
        "trial",
        ("/bin/true",),
        trial.scratch,
        cgroup_v2=group,
        network=NetworkPolicy("none").rules(group, {}, {}, memory_mb=1),
    )
    try:
        groups.make_parents()
        group.mkdir(exist_ok=True)
        trial.prepare(spec)
        return await asyncio.to_thread(_run_trial, trial, keeper, lambda: None)
    except OSError as error:
        return str(error)
    finally:
        groups.remove(_NETWORK_TRIAL)


def _installed_runtime() -> Path | None:
    path = shutil.which(RUNTIME, path=PATH)
    return None if path is None else Path(path)


def _container_problem(trial: RunFolder, containers: ContainerRuntime, keeper: Path) -> str | None:
    shutil.rmtree(trial.path, ignore_errors=True)
    root = trial.path / "root"
    spec = KeeperSpec(
        "trial",
        containers.command(root, trial.path, trial.scratch),
        Path("/"),
        {"PATH": PATH},
        "processes",
    )
    problem = _prepare(trial, spec, containers.limits)
    if problem is not None:
        return problem
    root.mkdir(mode=0o755)
    of_root = container_root_uid(containers.user_ids)
    if of_root is not None:
        os.chown(root, of_root, of_root)
    shared = [path for path in _PROGRAMS if os.path.isdir(path)]
    containers.write_bundle(trial.path, _TRIAL_PROGRAM, ["/bin/true"], {}, shared)
    return _run_trial(trial, keeper, lambda: runtime_failure(trial))


def _isolation_problem(
    trial: RunFolder,
    isolation: Isolation,
    keeper: Path,
    shared_paths: Sequence[Path],
    limits: ScratchLimits | None = None,
) -> str | None:
    shutil.rmtree(trial.path, ignore_errors=True)
    command: tuple[str, ...] = ("/bin/true",)
    if isolation == "landlock":
        command = ("/bin/sh", "-c", f"! kill -0 {os.getpid()} || exit {_SIGNALLED_STATUS}")
    spec = KeeperSpec(
        "trial",
        command,
        trial.scratch,
        isolation=isolation,
        uid=SANDBOX_UID,
        gid=SANDBOX_UID,
        read=shared_paths,
        write=(trial.scratch,),
    )
    problem = _prepare(trial, spec, limits)
    if problem is not None:
        return problem
    return _run_trial(trial, keeper, lambda: _signals_problem(trial))


def _prepare(trial: RunFolder, spec: KeeperSpec, limits: ScratchLimits | None) -> str | None:
    """Writes the folder of a trial, with a template of its own. Returns the problem, if any."""
    trial.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    apply_changes(trial.folder_changes())
    if limits is not None and limits.kind != "folder":
        try:
            template = replace(limits, templates=trial.path).template(SCRATCH_BYTES_MIN)
        except NoTemplate as error:
            remove_tree(trial.path)
            return str(error)
        spec = replace(
            spec,
            scratch=trial.scratch,
            scratch_bytes=SCRATCH_BYTES_MIN,
            scratch_template=template,
        )
    apply_changes([trial.spec_change(spec)])
    return None


def _signals_problem(trial: RunFolder) -> str | None:
    state = trial.state()
    return _SIGNALS if state is not None and state.exit_code == _SIGNALLED_STATUS else None


def _run_trial(trial: RunFolder, keeper: Path, more: Callable[[], str | None]) -> str | None:
    try:
        trial.start(keeper)
        until_s = time.monotonic() + _TRIAL_TIMEOUT_S
        while trial.is_kept() and time.monotonic() < until_s:
            time.sleep(_POLL_INTERVAL_S)
        state = trial.state()
        if state is None or state.status != "ended":
            return "the trial program did not end"
        if state.exit_code != 0:
            return more() or state.message or f"the trial program exited with {state.exit_code}"
    except (KeeperFailed, OSError) as error:
        return str(error)
    finally:
        remove_tree(trial.path)
    return None
