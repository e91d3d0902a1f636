"""Images as containerd unpacks them. Nodes share the files, so that a node starts without an import."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.cluster.cluster_files import BIN, DEBIAN, FOLDER, IMAGES
from tests.cluster.machines import Machine, until_started

_STORE: Final = FOLDER / "containerd"
_UPDATED: Final = FOLDER / "containerd.updated"
_SOCKET: Final = "/run/containerd/containerd.sock"


def update_image_store(folder: Path) -> None:
    """Imports the images that are newer than the store, on a machine of its own in `folder`."""
    updated_ns = _UPDATED.stat().st_mtime_ns if _UPDATED.exists() else 0
    archives = [path for path in IMAGES.glob("*.tar") if path.stat().st_mtime_ns > updated_ns]
    if not archives:
        return
    newest_ns = max(path.stat().st_mtime_ns for path in archives)
    machine = Machine("image-store", folder / "image-store")
    machine.start(BIN / "pause")
    try:
        mount_programs(machine)
        machine.run("mount", "-t", "tmpfs", "run", "/run")
        machine.spawn("containerd", "containerd", f"--root={_STORE}")
        wait_containerd(machine)
        for archive in archives:
            machine.run("ctr", "--namespace=k8s.io", "images", "import", archive)
    finally:
        machine.kill()
    _UPDATED.touch()
    os.utime(_UPDATED, ns=(newest_ns, newest_ns))


def copy_image_store(target: Path) -> None:
    """Fills the folder of a node's containerd with links to the files of the store."""
    if target.exists():
        return
    subprocess.run(["cp", "--archive", "--link", _STORE, target], check=True)
    # containerd changes its databases in place. All other files are replaced or stay.
    for link in target.rglob("*.db"):
        copy = link.with_suffix(".copy")
        shutil.copy2(link, copy)
        copy.replace(link)


def mount_programs(machine: Machine) -> None:
    """Gives a machine the programs of Debian's packages."""
    machine.run("mount", "-t", "overlay", "-o", f"lowerdir={DEBIAN}/usr:/usr", "usr", "/usr")


def wait_containerd(machine: Machine) -> None:
    def answers() -> bool:
        machine.require("containerd")
        return Path(f"/proc/{machine.pid}/root{_SOCKET}").exists()

    until_started(answers)
