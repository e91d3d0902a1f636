"""Small builds of many folders, links and empty files: each entry counts as a block and an inode."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from pyservice.runtime import root_filesystem
from pyservice.runtime.archive_rules import (
    DISK_BLOCK_BYTES,
    ENTRIES_MAX,
    BadArchive,
    RootRules,
    SizeAllowance,
)
from pyservice.runtime.archive_validation import ArchiveValidator, PackedLayers
from pyservice.runtime.build_unpacking import unpack
from pyservice.runtime.filesystem import INODES_FREE, is_disk_short
from tests.control.files import entry, gzipped, tar
from tests.programs.images import file, layer, link, saved
from tests.runtime.node import disk_of
from tests.runtime.test_archive_validation import judge, refusal
from tests.runtime.unpacked_trees import unpacked

LINK, HARD, FOLDER, FILE = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.REGTYPE
END: Final = bytes(1024)
CONFIG: Final = b'{"process": {"args": ["/run"]}, "root": {"path": "rootfs"}}'
MANY: Final = 1_200


def same(count: int) -> bytes:
    return entry("usr/", FOLDER).tobuf() * count + END


def deep(count: int) -> bytes:
    """Returns files that each have 250 parent folders of their own, without entries for the
    folders.
    """
    return tar({f"{number}/{'d/' * 249}f": b"" for number in range(count)})


def test_hundred_thousand_entries_are_the_limit() -> None:
    assert ENTRIES_MAX == 100_000
    allowance = SizeAllowance(0)
    allowance.take_entry(ENTRIES_MAX - 2, 0)
    list(ArchiveValidator("none", allowance).feed(same(1)))
    with pytest.raises(BadArchive) as caught:
        list(ArchiveValidator("none", allowance).feed(same(1)))
    refused = caught.value
    assert (refused.word, refused.entry) == ("too-many", "")
    assert "must have at most 100000 files, folders and links" in refused.reason


def test_ordinary_distribution_image_is_accepted() -> None:
    judge(saved(same(20_000), gzipped(same(40_000))), is_image=True)


def test_image_layers_count_together() -> None:
    half = gzipped(deep(200))
    judge(saved(half), is_image=True)
    refused = refusal(saved(half, half), is_image=True)
    assert (refused.word, refused.entry) == ("too-many", "")
    assert "layers of an image together" in refused.reason


def test_implicit_folders_are_counted_once() -> None:
    judge(deep(390))
    judge(deep(390).removesuffix(END) + deep(390))
    assert refusal(deep(410)).word == "too-many"
    assert refusal(saved(deep(410)), is_image=True).word == "too-many"


@pytest.mark.parametrize("kind", ["archive", "oci_bundle", "docker_image"])
def test_unpacker_rejects_too_many_entries_too(tmp_path: Path, kind: str) -> None:
    content = saved(deep(410)) if kind == "docker_image" else deep(410)
    with pytest.raises(BadArchive) as caught:
        unpacked(tmp_path, content, kind)
    assert (caught.value.word, caught.value.entry) == ("too-many", "")
    made = sum(len(folders) + len(files) for _, folders, files in os.walk(tmp_path))
    assert made < 10, "and nothing of them is made"


def test_folders_behind_links_are_counted_when_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_filesystem, "ENTRIES_MAX", 1_000)

    def content(count: int) -> bytes:
        pairs = ((link(f"l{n}", f"{n}/" + "d/" * 199), file(f"l{n}/f")) for n in range(count))
        return saved(layer(*(one for pair in pairs for one in pair)))

    unpacked(tmp_path / "few", content(4))
    with pytest.raises(BadArchive) as caught:
        unpacked(tmp_path / "many", content(6))
    assert caught.value.word == "too-many"


@pytest.mark.parametrize("kind", [FOLDER, LINK, HARD, FILE])
@pytest.mark.parametrize("is_image", [False, True])
def test_empty_entry_counts_as_one_block(kind: bytes, is_image: bool) -> None:
    entries = [entry(f"e{number}", kind, "x") for number in range(100)]
    content = tar({}, entries)
    for blocks, is_taken in ((140, True), (99, False)):
        allowance = SizeAllowance(len(content))
        allowance.max_bytes = blocks * DISK_BLOCK_BYTES
        if is_image:
            layers = PackedLayers(allowance)
            archive = ArchiveValidator("none", SizeAllowance(1), layers=layers)
        else:
            archive = ArchiveValidator("none", allowance, rules=RootRules())
        fed = tar({"layer.tar": content}) if is_image else content
        if is_taken:
            list(archive.feed(fed))
            list(archive.finish())
        else:
            with pytest.raises(BadArchive) as caught:
                list(archive.feed(fed))
            assert caught.value.word == "too-high"


def test_large_file_is_not_counted_twice() -> None:
    content = tar({f"f{number}": bytes(64 << 10) for number in range(16)})
    allowance = SizeAllowance(len(content))
    allowance.max_bytes = len(content)
    list(ArchiveValidator("none", allowance).feed(content))


def of_kind(kind: str, entry_kind: bytes, count: int) -> bytes:
    inside = "rootfs/" if kind == "oci_bundle" else ""
    target = "config.json" if entry_kind == HARD else "x"
    if entry_kind == HARD and inside:
        target = f"{inside}0"
    entries = [entry(f"{inside}{number}", entry_kind, target) for number in range(1, count)]
    files = {"config.json": CONFIG, f"{inside}0": b""}
    content = tar(files, entries)
    return saved(content) if kind == "docker_image" else content


class Disk:
    """File system statistics in which each entry takes one block and one inode."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks_free = 1 << 30
        self.inodes_free = 1 << 30
        self.inodes = 1 << 30

    def made(self) -> int:
        return sum(len(folders) + len(files) for _, folders, files in os.walk(self.folder / "root"))

    def __call__(self, _: object) -> SimpleNamespace:
        made = self.made()
        return SimpleNamespace(
            f_bavail=self.blocks_free - made,
            f_frsize=4_096,
            f_files=self.inodes,
            f_favail=self.inodes_free - made if self.inodes else 0,
        )


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(tmp_path)
    monkeypatch.setattr(os, "statvfs", made)
    return made


@pytest.mark.parametrize("kind", ["archive", "oci_bundle", "docker_image"])
@pytest.mark.parametrize("entry_kind", [FOLDER, LINK, HARD, FILE])
@pytest.mark.parametrize("short", ["blocks", "inodes"])
def test_empty_entries_leave_the_disk_reserve_free(
    tmp_path: Path, disk: Disk, kind: str, entry_kind: bytes, short: str
) -> None:
    reserve_blocks = 1_000
    if short == "blocks":
        disk.blocks_free = reserve_blocks + MANY // 2
    else:
        disk.inodes_free = INODES_FREE + MANY // 2
    content = of_kind(kind, entry_kind, MANY)
    with pytest.raises(OSError, match="reserve of space or inodes") as caught:
        unpacked(tmp_path, content, kind, reserve_bytes=reserve_blocks * 4_096)
    assert caught.value.errno == errno.ENOSPC
    assert MANY // 2 <= disk.made() <= MANY // 2 + 100
    # Logs and builds use the same disk reserve.
    assert is_disk_short(tmp_path, reserve_blocks * 4_096)


@pytest.mark.parametrize("kind", ["archive", "docker_image"])
def test_implicit_folders_reserve_space(tmp_path: Path, disk: Disk, kind: str) -> None:
    disk.inodes_free = INODES_FREE + 600
    content = saved(deep(8)) if kind == "docker_image" else deep(8)
    with pytest.raises(OSError, match="reserve"):
        unpacked(tmp_path, content, kind)
    assert disk.made() <= 700


def test_file_system_without_inode_counts_is_not_short(tmp_path: Path, disk: Disk) -> None:
    disk.inodes = 0
    root = unpacked(tmp_path, of_kind("archive", FOLDER, MANY), "archive")
    assert len(list(root.iterdir())) == MANY + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A twentieth of the inodes is reserved."""
    with disk_of(tmp_path / "disk", 4_000) as mounted:
        yield mounted


def test_inodes_of_a_small_disk_are_not_exhausted(small_disk: Path) -> None:
    content = gzipped(of_kind("archive", FOLDER, 5_000))
    assert len(content) < 40_000
    (small_disk / "root").mkdir()
    with pytest.raises(OSError, match="reserve of space or inodes") as caught:
        unpack(io.BytesIO(content), small_disk, "archive", "gzip", len(content))
    assert caught.value.errno == errno.ENOSPC
    assert 100 <= os.statvfs(small_disk).f_favail <= 200
