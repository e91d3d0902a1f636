"""Formats of a data directory: which release may write it, and which can go on after a rollback."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyservice._native import version
from pyservice.data_formats import (
    FILE,
    FormatsRefused,
    commit_upgrade,
    require_formats,
    rollback_losses,
)
from tests.support.command_line import run
from tests.support.full_service import Developer, FullService
from tests.support.unprivileged_python import USER, interpreter


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FullService]:
    service = FullService(tmp_path)
    yield service
    service.close()


def change(data_dir: Path, **fields: Any) -> None:
    path = data_dir / FILE
    content = json.loads(path.read_text())
    content["release"] |= fields
    path.write_text(json.dumps(content))


async def publish(service: FullService) -> None:
    async with service.open_client("http") as client:
        developer = Developer(service, client)
        await developer.public_token(await developer.arena())


@pytest.mark.full
def test_noted_formats_are_those_of_the_files(service: FullService) -> None:
    service.start()
    asyncio.run(publish(service))
    data = service.data_dir
    formats = json.loads((data / FILE).read_text())["release"]["formats"]
    [first, *_] = sorted((data / "journal").glob("seg-*.log"))
    assert struct.unpack_from("<8sI", first.read_bytes()) == (b"HJSEGMNT", formats["journal"])
    [feed, *_] = (data / "feed").glob("*.cfg")
    assert struct.unpack_from("<8sH", feed.read_bytes()) == (b"HOSTFEED", formats["feed"])
    assert service.stop() == 0
    with closing(sqlite3.connect(data / "control/records.db")) as records:
        [(revision,)] = records.execute("SELECT version_num FROM alembic_version")
    assert formats["records"] == int(revision)
    check = run(data, "rollback-check")
    assert (check.returncode, check.stdout.split(": ")[-1]) == (0, "there is no release before\n")


@pytest.mark.full
def test_release_with_the_same_formats_can_be_rolled_back(service: FullService) -> None:
    service.start()
    assert service.stop() == 0
    change(service.data_dir, name="0.1.9")
    assert "nothing was changed: release 0.1.9" in run(service.data_dir, "rollback-check").stdout
    assert "nothing to commit" in run(service.data_dir, "upgrade", "commit").stdout
    service.start()
    assert service.stop() == 0
    check = run(service.data_dir, "rollback-check")
    assert (check.returncode, check.stdout) == (
        0,
        f"release 0.1.9 can read {service.data_dir}: a rollback loses nothing\n",
    )


@pytest.mark.parametrize("part", ["journal", "records", "feed", "runs"])
def test_each_format_is_checked_at_a_start(tmp_path: Path, part: str) -> None:
    require_formats(tmp_path)
    formats = json.loads((tmp_path / FILE).read_text())["release"]["formats"]
    number = formats[part]
    change(tmp_path, name="0.1.9", formats={**formats, part: number - 1})
    with pytest.raises(FormatsRefused, match=rf"{part} {number} \(it reads {number - 1}\)"):
        require_formats(tmp_path)
    commit_upgrade(tmp_path)
    require_formats(tmp_path)
    change(tmp_path, name="9.0.0", formats={**formats, part: number + 1})
    with pytest.raises(FormatsRefused, match=r"was written by release 9\.0\.0"):
        require_formats(tmp_path)
    with pytest.raises(FormatsRefused, match=r"was written by release 9\.0\.0"):
        commit_upgrade(tmp_path)


@pytest.mark.parametrize(
    ("name", "remedy"), [("0.1.0", "needs a copy of"), ("0.1.9", "needs a backup or a copy of")]
)
def test_rollback_after_a_commit_names_the_backup_and_the_copy(
    tmp_path: Path, name: str, remedy: str
) -> None:
    require_formats(tmp_path)
    path = tmp_path / FILE
    content = json.loads(path.read_text())
    formats = {**content["release"]["formats"], "journal": 1}
    content["before"] = {"name": name, "formats": formats}
    path.write_text(json.dumps(content))
    is_lossless, text = rollback_losses(tmp_path)
    assert not is_lossless
    assert f"It {remedy} {tmp_path} and of the database, from before the upgrade (" in text


@pytest.mark.full
def test_upgrade_is_committed_only_while_the_service_is_stopped(service: FullService) -> None:
    service.start()
    formats = json.loads((service.data_dir / FILE).read_text())["release"]["formats"]
    change(service.data_dir, name="0.1.9", formats={**formats, "journal": 1})
    before = (service.data_dir / FILE).read_bytes()
    refused = run(service.data_dir, "upgrade", "commit")
    assert refused.returncode == 1
    assert "is in use by process" in refused.stderr
    assert (service.data_dir / FILE).read_bytes() == before
    assert service.stop() == 0
    assert "committed: the next start upgrades" in run(service.data_dir, "upgrade", "commit").stdout
    service.start()


def test_data_plane_of_another_user_starts_before_the_control_plane(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    user = interpreter(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    require_formats(data)
    change(data, name="0.1.9")
    (data / "control").mkdir()
    (data / "control/keys.json").write_text("")
    os.chown(data, 0, USER)
    data.chmod(0o1770)
    script = f"from pathlib import Path; from {require_formats.__module__} import *"
    start = f"{script}; require_formats(Path({str(data)!r}))"
    ended = subprocess.run([*user, "-c", start], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads((data / FILE).read_text())["release"]["name"] == "0.1.9"
    require_formats(data)
    assert json.loads((data / FILE).read_text())["release"]["name"] == version


def test_directory_of_a_newer_release_is_refused(service: FullService) -> None:
    service.start()
    assert service.stop() == 0
    formats = json.loads((service.data_dir / FILE).read_text())["release"]["formats"]
    change(service.data_dir, name="9.0.0", formats={**formats, "journal": 10})
    refused = run(service.data_dir, "serve")
    assert refused.returncode == 1
    assert "was written by release 9.0.0: use that release, or a newer one" in refused.stderr
    check = run(service.data_dir, "rollback-check")
    assert (check.returncode, check.stdout.strip() in refused.stderr) == (1, True), check.stdout
    commit = run(service.data_dir, "upgrade", "commit")
    assert (commit.returncode, commit.stdout) == (1, "")
    assert check.stdout in commit.stderr
    (service.data_dir / FILE).write_text("{")
    refused = run(service.data_dir, "serve")
    assert refused.returncode == 1
    assert "formats.json is damaged: restore it from a backup" in refused.stderr
