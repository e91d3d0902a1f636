"""Programs of Debian's packages, fetched into a folder without an installation."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

LIBRARIES: Final = Path("usr/lib/x86_64-linux-gnu")
FETCH_TIMEOUT_S: Final = 120.0


def fetch_packages(folder: Path, packages: Sequence[str]) -> Path:
    """Fetches packages and unpacks them into `folder/root`. Skips the test without access to them."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            pytest.skip(f"this machine has no {program}, so it is not Debian")
    root = folder / "root"
    root.mkdir()
    command = ["apt-get", "download", *packages]
    fetched = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
    )
    if fetched.returncode:
        pytest.skip(f"this machine cannot fetch packages of Debian: {fetched.stderr[-300:]}")
    for package in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    return root


def build_archive(command: Sequence[str], files: Mapping[str, Path]) -> bytes:
    """Returns a build with files and folders of packages. Shared libraries are in `lib`."""
    manifest = {"command": command, "env": {"LD_LIBRARY_PATH": "lib"}}
    content = json.dumps(manifest).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("server.json")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
        for name, path in files.items():
            archive.add(path, name)
    return buffer.getvalue()


def libraries(root: Path) -> dict[str, Path]:
    """Returns the libraries of the packages by their path in a build."""
    found = sorted((root / LIBRARIES).glob("*.so.*"))
    return {f"lib/{path.name}": path.resolve() for path in found}
