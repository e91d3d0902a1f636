"""`pyservice deploy` with no space left: on the developer's disk, and on the disk of the service."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice_cli.failures import ExitStatus
from tests.support import game_programs
from tests.support.full_service import FullService, running
from tests.support.game_folder import SERVER, GameFolder, open_folder
from tests.support.game_folder import folder as folder
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.waiting import until

pytestmark = pytest.mark.full

DISK_MIB = 48
MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> SmallDisk:
    return small_disk(tmp_path, DISK_MIB)


@pytest.fixture
def holder(disk: SmallDisk) -> Iterator[int]:
    """A process that keeps the disk mounted. Returns its PID."""
    before = disk.mount_point.stat().st_dev
    with subprocess.Popen([*disk.command_prefix, "sleep", "infinity"]) as process:
        try:
            until(lambda: disk.inside(process.pid).stat().st_dev != before)
            yield process.pid
        finally:
            process.kill()


def test_no_space_to_pack_the_build(folder: GameFolder, disk: SmallDisk, holder: int) -> None:
    folder.deployed("--no-trial")
    before = folder.running_version()
    game = disk.inside(holder) / "game"
    game.mkdir()
    (game / "hosting.toml").write_text((folder.path / "hosting.toml").read_text())
    (game / "server.py").write_text(SERVER + "\n# changed\n")
    (game / "map").write_bytes(bytes(MIB))
    for is_first in (True, False):
        if not is_first:
            (game / ".hosting").mkdir()
        filler = disk.fill(holder)
        ended = folder.call("deploy", "--no-trial", "--folder", str(game))
        assert ended.status == ExitStatus.REFUSED, ended
        assert f"There is no space left on the disk of {game}/.hosting." in ended.errors
        assert "Free space, then run the same command again." in ended.errors
        assert folder.running_version() == before
        filler.unlink()
    space = shutil.disk_usage(game).free
    (game / "large.map").write_bytes(bytes(space * 2 // 3))
    error = folder.call("deploy", "--no-trial", "--folder", str(game), "--json").result["error"]
    assert error["code"] == "DISK_FULL"
    assert re.search(r"The archive of the build needs [0-9.]+ MiB there\.$", error["message"])
    assert folder.running_version() == before
    (game / "large.map").unlink()
    assert {path.suffix for path in (game / ".hosting").iterdir()} == {"", ".json"}
    folder.deployed("--no-trial", "--folder", str(game))
    assert folder.running_version() != before


class SmallService(FullService):
    """A service with its data directory on a small disk."""

    def __init__(self, folder: Path, disk: SmallDisk) -> None:
        super().__init__(folder, runtime=game_programs.SETTINGS, storage_reserve_bytes=1 << 20)
        self.disk = disk
        self.interpreter = (*disk.command_prefix, sys.executable)
        self.data_dir = disk.mount_point / "data"

    @property
    def cloud_token(self) -> str:
        assert self.process is not None
        path = f"/proc/{self.process.pid}/root{self.ready['cloud_token_file']}"
        return Path(path).read_text().strip()

    def fill(self) -> Path:
        """Fills the disk. Returns the file to delete to free the space."""
        assert self.process is not None
        return self.disk.fill(self.process.pid)


@pytest.fixture
def small_service(tmp_path: Path, disk: SmallDisk) -> Iterator[SmallService]:
    with running(SmallService(tmp_path / "s", disk)) as service:
        yield service


def test_no_space_at_the_service(
    tmp_path: Path,
    small_service: SmallService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = open_folder(tmp_path / "game", "small", small_service, monkeypatch, capsys)
    folder.deployed("--no-trial")
    before = folder.running_version()
    large, small = bytes(2 * DISK_MIB * MIB), bytes(2 * MIB)
    for size, is_full in ((large, False), (small, True)):
        (folder.path / "level.map").write_bytes(size)
        if is_full:
            filler = small_service.fill()
        ended = folder.call("deploy", "--no-trial")
        assert ended.status == ExitStatus.REFUSED, ended
        assert "STORAGE_FULL: The disk is full." in ended.errors
        assert "It is the disk of the service." in ended.errors
        assert folder.running_version() == before
    filler.unlink()
    folder.deployed("--no-trial")
    assert folder.running_version() != before
