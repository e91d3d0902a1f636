"""Files of a backup: stored, encrypted, read back, and refused if they are damaged."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice.backup.encryption import Encryption, KeyUnusable
from pyservice.backup.target import BackupFailed, StoredFile, Target, Throttle, make_target
from tests.support.backups import RATE, Operator

CONTENT = b"records of the service " * 100_000


def target(folder: Path, encryption: Encryption | None = None) -> Target:
    make_target(str(folder))
    return Target(str(folder), RATE, encryption or Encryption())


def blocks(content: bytes = CONTENT) -> Iterator[bytes]:
    middle = len(content) // 3
    yield content[:middle]
    yield content[middle:]


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path / "private.key")


def read(opened: Target, file: StoredFile) -> bytes:
    return b"".join(opened.read(file))


def test_file_is_read_back(tmp_path: Path) -> None:
    opened = target(tmp_path / "backups")
    stored = opened.put("a/b", blocks())
    assert (stored.path, stored.bytes, stored.recipients) == ("a/b", len(CONTENT), "")
    assert read(opened, stored) == CONTENT
    assert opened.names("a") == {"a/b": len(CONTENT)}
    opened.delete(["a/b"])
    assert opened.names("a") == {}


def test_only_the_owner_can_read_a_backup(tmp_path: Path) -> None:
    folder = tmp_path / "other" / "backups"
    mask = os.umask(0o022)
    try:
        opened = target(folder)
        opened.put("a/b/c", blocks())
        opened.put_plain("a/manifest.json", b"{}")
    finally:
        os.umask(mask)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "other").rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}


def test_file_that_fails_halfway_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield CONTENT
        raise OSError("the source cannot be read")

    folder = tmp_path / "backups"
    with pytest.raises(BackupFailed, match="the source cannot be read"):
        target(folder).put("a/b", failing())
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_encrypted_file_needs_the_private_key(tmp_path: Path, operator: Operator) -> None:
    folder = tmp_path / "backups"
    stored = target(folder, Encryption([operator.public_key])).put("file", blocks())
    assert stored.recipients
    assert b"records" not in (folder / "file").read_bytes()
    assert read(target(folder, Encryption((), operator.file)), stored) == CONTENT
    with pytest.raises(BackupFailed, match="is encrypted: name the file of the private key with"):
        read(target(folder), stored)
    other = Operator(tmp_path / "other.key")
    with pytest.raises(BackupFailed, match=r"the backup cannot be decrypted: .*: check --identity"):
        read(target(folder, Encryption((), other.file)), stored)


def test_each_of_two_private_keys_reads_a_file(tmp_path: Path, operator: Operator) -> None:
    other = Operator(tmp_path / "other.key")
    folder = tmp_path / "backups"
    both = Encryption([operator.public_key, other.public_key])
    stored = target(folder, both).put("file", blocks())
    for one in (operator, other):
        assert read(target(folder, Encryption((), one.file)), stored) == CONTENT


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_damaged_file_is_refused(tmp_path: Path, operator: Operator, is_encrypted: bool) -> None:
    folder = tmp_path / "backups"
    recipients = [operator.public_key] if is_encrypted else []
    opened = target(folder, Encryption(recipients, operator.file))
    stored = opened.put("file", blocks())
    content = (folder / "file").read_bytes()
    middle = len(content) // 2
    for damaged in (
        content[:-1],
        content + b"a",
        content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
    ):
        (folder / "file").write_bytes(damaged)
        with pytest.raises(BackupFailed):
            read(opened, stored)
    (folder / "file").write_bytes(content)
    assert read(opened, stored) == CONTENT
    (folder / "file").unlink()
    with pytest.raises(BackupFailed, match="file is missing"):
        read(opened, stored)


def test_unusable_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(KeyUnusable, match="none cannot be read: No such file or directory"):
        Encryption((), tmp_path / "none")
    for content in ("", "# only a comment\n", "AGE-SECRET-KEY-1NONSENSE\n"):
        (tmp_path / "file").write_text(content)
        with pytest.raises(KeyUnusable, match="file has no private key such as AGE-SECRET-KEY-1"):
            Encryption((), tmp_path / "file")


def test_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackupFailed, match="file/backups cannot be used: Not a directory"):
        make_target(str(tmp_path / "file/backups"))


def test_missing_folder_is_read_by_no_command_and_not_created(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    with pytest.raises(BackupFailed, match="backups does not exist: name the target of pyservice"):
        Target(str(folder), RATE, Encryption())
    assert not folder.exists()


def test_rate_is_limited_without_credit_for_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    slept: list[float] = []

    def sleep(duration_s: float) -> None:
        nonlocal now_s
        slept.append(round(duration_s, 6))
        now_s += duration_s

    monkeypatch.setattr(time, "sleep", sleep)
    throttle = Throttle(1_000, lambda: now_s)
    throttle.wait(500)
    throttle.wait(250)
    now_s += 60
    throttle.wait(1_000)
    assert slept == [0.5, 0.25, 1.0]
