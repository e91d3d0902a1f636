"""Sockets of a control plane of root, for planes of another user."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice.process.shared_sockets import share_with_group
from tests.support.unprivileged_python import USER

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives sockets to a group")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        folder = Path(name, "data")
        folder.mkdir()
        (folder / "control").mkdir(mode=0o700)
        yield folder


def may_connect(path: Path) -> bool:
    """Returns whether the other user has the permission to write that a connection needs."""
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    return subprocess.run([*user, "test", "-w", str(path)], check=False).returncode == 0


@pytest.mark.parametrize(("mode", "is_shared"), [(0o1770, True), (0o755, False)])
def test_only_the_group_of_a_writable_directory_connects(
    data_dir: Path, mode: int, is_shared: bool
) -> None:
    os.chown(data_dir, -1, USER)
    data_dir.chmod(mode)
    control = data_dir / "control"
    (control / "records.db").touch(0o600)
    path = control / "grpc.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        share_with_group(data_dir, control, path, control / "edge-cdn.sock")
        assert may_connect(path) == is_shared
    modes = {one: stat.S_IMODE(one.stat().st_mode) for one in (control, control / "records.db")}
    assert modes == {control: 0o710 if is_shared else 0o700, control / "records.db": 0o600}
