"""Files that `make test-cluster` builds, and what a machine needs for a cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.cluster.control_groups import missing_controllers
from tests.support.tracked_files import ROOT

FOLDER: Final = ROOT / "build" / "cluster"
BIN: Final = FOLDER / "bin"
"""`helm`, `pause`, and the programs of Kubernetes."""
DEBIAN: Final = FOLDER / "debian"
"""Unpacked packages of Debian: etcd, containerd, runc, the CNI plugins and iptables."""
IMAGES: Final = FOLDER / "images"
CHART: Final = ROOT / "deploy" / "helm" / "hosting"
PAUSE_IMAGE: Final = "localhost/pause:1"
RUNNER_IMAGE: Final = "localhost/hosting-runner:1"
SERVICE_IMAGE: Final = "localhost/hosting:1"

_PROGRAMS: Final = ("helm", "kubernetes", "pause")
_ARCHIVES: Final = ("pause.tar", "runner.tar", "service.tar")
_PACKAGED: Final = ("usr/bin/containerd", "usr/bin/etcd", "usr/lib/cni/bridge", "usr/sbin/runc")
_SYSTEM_PROGRAMS: Final = {
    **dict.fromkeys(("nsenter", "setpriv", "unshare"), "util-linux"),
    "ip": "iproute2",
    "openssl": "openssl",
}
"""Package of each program."""


def unsupported() -> str | None:
    """Returns why this machine cannot run a cluster, or None."""
    if os.geteuid() != 0:
        return "only root can run a cluster"
    if lacking := missing_controllers():
        return f"the kernel has no control group of version 1 for {', '.join(lacking)}"
    for program, package in _SYSTEM_PROGRAMS.items():
        if shutil.which(program) is None:
            return f"no {program}: apt-get install {package}"
    if missing := [str(path) for path in _built() if not path.exists()]:
        return f"no {missing[0]}: `make test-cluster` builds it"
    return None


def stale_image() -> str | None:
    """Returns what to do if the image of the service is older than its sources, or None."""
    built_ns = (IMAGES / "service.tar").stat().st_mtime_ns
    for path in (ROOT / "pyservice").rglob("*.py"):
        if path.stat().st_mtime_ns > built_ns:
            return f"the image of the service is older than {path}: run `make test-cluster`"
    return None


def _built() -> Iterator[Path]:
    yield from (BIN / name for name in _PROGRAMS)
    yield from (DEBIAN / name for name in _PACKAGED)
    yield from (IMAGES / name for name in _ARCHIVES)
