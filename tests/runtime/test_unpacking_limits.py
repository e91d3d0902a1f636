"""Limits of unpacked builds: names, sizes, numbers of entries, and the disk reserve."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from pyservice.runtime import archive_rules, root_filesystem
from pyservice.runtime.archive_reader import read_archive
from pyservice.runtime.archive_rules import (
    DISK_BLOCK_BYTES,
    ENTRIES_MAX,
    PATH_MAX_BYTES,
    BadArchive,
    FolderRules,
    RootRules,
    Rules,
    SizeAllowance,
)
from pyservice.runtime.build_unpacking import check, unpack
from pyservice.runtime.disk_reserve import INODES_FREE, is_disk_short
from tests.runtime.archive_judgement import judge, refusal
from tests.runtime.unpacked_trees import unpacked
from tests.support.container_images import file, layer, link, saved
from tests.support.runtime_host import disk_of
from tests.support.tiers import one_of
from tests.support.upload_files import MANIFEST, bomb, entry, gzipped, packed, tar

LINK, HARD, FOLDER, FILE = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.REGTYPE
END: Final = bytes(1024)
CONFIG: Final = b'{"process": {"args": ["/run"]}, "root": {"path": "rootfs"}}'
MIB: Final = 1 << 20


def checked(content: bytes, kind: str = "docker_image") -> BadArchive | None:
    return check(io.BytesIO(content), kind, "none", len(content))[1]


def image_refusal(content: bytes) -> BadArchive:
    problem = checked(content)
    assert problem is not None
    return problem


# Names --------------------------------------------------------------------------------------------


def with_nul() -> bytes:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"path": "a\0b"}
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


NAME = "n" * 256
LONG = {
    "a file": (tar({NAME: b"x"}), "too-long", "longer than 255 bytes"),
    "a name in bytes": (tar({"ä" * 128: b"x"}), "too-long", "longer than 255 bytes"),
    "a folder": (tar({}, [entry(f"{NAME}/", FOLDER)]), "too-long", "longer than 255 bytes"),
    "a folder above": (tar({f"a/{NAME}/b": b"x"}), "too-long", "longer than 255 bytes"),
    "a link": (tar({}, [entry(f"a/{NAME}", LINK, "b")]), "too-long", "longer than 255 bytes"),
    "another name": (tar({"b": b""}, [entry(NAME, HARD, "b")]), "too-long", "longer than 255"),
    "a path": (tar({"/".join(["p" * 200] * 16): b"x"}), "too-long", "longer than 3072 bytes"),
    "a link's target": (tar({}, [entry("a", LINK, "b/" * 2_048)]), "too-long", "than 4095 bytes"),
    "a NUL": (with_nul(), "invalid", "has a NUL"),
}


@pytest.mark.parametrize("name", LONG)
def test_name_that_no_file_system_accepts_is_rejected(name: str) -> None:
    content, word, words = LONG[name]
    images = (saved(content), saved(gzipped(content)), saved(layer(file("a")), content))
    refusals = [refusal(content), refusal(content, rules=RootRules()), *map(image_refusal, images)]
    for refused in refusals:
        assert refused.word == word
        assert words in refused.reason
        assert 0 < len(refused.entry) <= 256


def test_names_of_the_maximum_length_are_unpacked(tmp_path: Path) -> None:
    path = "/".join(["p" * 255] * 12)
    assert len(path) + 1 == PATH_MAX_BYTES, "one more is no name"
    content = tar({**MANIFEST, path: b"x"}, [entry("l", LINK, "x" * 255)])
    assert checked(content, "archive") is checked(saved(content)) is None
    assert (unpacked(tmp_path / "d", content, "archive") / path).read_text() == "x"
    assert (unpacked(tmp_path / "i", saved(content)) / path).read_text() == "x"


# Sizes --------------------------------------------------------------------------------------------


def layers(compression: str) -> bytes:
    return saved(*[bomb(compression, 32 * MIB)] * 2)


def bundle(compression: str) -> bytes:
    begin = packed(tar({"config.json": CONFIG})[: 2 * 512], compression)
    return begin + bomb(compression, 64 * MIB, "rootfs/zeros")


BOMBS: Final[dict[str, tuple[str, str, Callable[[], bytes]]]] = {
    "an archive in lz4": ("archive", "lz4", lambda: bomb("lz4", 64 * MIB)),
    "layers in gzip": ("docker_image", "none", lambda: layers("gzip")),
    "layers in zstd": ("docker_image", "none", lambda: layers("zstd")),
    "layers in an archive in zstd": (
        "docker_image",
        "zstd",
        lambda: packed(layers("gzip"), "zstd"),
    ),
    "the archive around layers": ("docker_image", "gzip", lambda: bomb("gzip", 64 * MIB)),
    "a bundle in gzip": ("oci_bundle", "gzip", lambda: bundle("gzip")),
    "a bundle in zstd": ("oci_bundle", "zstd", lambda: bundle("zstd")),
}
"""Functions, because each worker of a test run imports this module."""


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_rejected_when_checked_and_unpacked(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, compression, make_content = BOMBS[name]
    content = make_content()
    # All layers together have 64 MiB, the outer archive of each image is smaller.
    monkeypatch.setattr(archive_rules, "FREE_BYTES", 48 * MIB)
    monkeypatch.setattr(archive_rules, "RATIO_MAX", 1)
    (tmp_path / "root").mkdir()
    with pytest.raises(BadArchive) as caught:
        unpack(io.BytesIO(content), tmp_path, kind, compression, len(content))
    problem = check(io.BytesIO(content), kind, compression, len(content)).problem
    for error in (caught.value, problem):
        assert error is not None
        assert (error.word, error.entry) == ("too-high", "")
        assert f"{len(content)} bytes may unpack to at most {48 * MIB} " in error.reason
    sizes = (os.path.getsize(path) for path in tmp_path.rglob("*") if path.is_file())
    assert sum(sizes) < 40 * MIB


def test_well_compressed_image_within_the_limit_is_accepted() -> None:
    assert checked(saved(bomb("gzip", 32 * MIB), bomb("zstd", 32 * MIB))) is None


def test_file_that_is_no_layer_has_no_entries_to_check() -> None:
    begins = {"a": b"\x1f\x8bno gzip" * 9_000, "b": b"\x28\xb5\x2f\xfd" * 9_000, "c": b"\x1f"}
    files = {
        **begins,
        "d": b"n" * 5_000,
        "e": b"{}",
        "f": tar({"x": b"y"})[:700],
        "g": bytes(4_096),
    }
    files |= {"h": packed(tar(), "gzip")[:30], "i": packed(b"no tar" * 900, "zstd")}
    with tarfile.open(fileobj=io.BytesIO(saved(layer(file("a"))))) as image:
        parts = {one.name: image.extractfile(one).read() for one in image}  # type: ignore[union-attr]
    assert checked(tar({**files, **parts})) is None


def test_layer_without_entries_is_unpacked(tmp_path: Path) -> None:
    """Builders write such layers for steps that change no file."""
    image = saved(layer(file("a", b"1")), gzipped(layer()), layer())
    assert checked(image) is None
    assert [path.name for path in unpacked(tmp_path, image).iterdir()] == ["a"]


@pytest.mark.parametrize(
    "content", [b"no tar at all" * 100, layer(file("a", b"x" * 5_000))[:3_000]]
)
def test_layer_that_is_no_tar_is_refused_when_checked_and_unpacked(
    tmp_path: Path, content: bytes
) -> None:
    image = saved(layer(file("a")), gzipped(content))
    with pytest.raises(BadArchive) as caught:
        unpacked(tmp_path, image)
    problem = image_refusal(image)
    assert str(problem) == str(caught.value)
    assert (problem.entry, problem.word) == (f"{1:064x}/layer.tar", "invalid")


# Entries ------------------------------------------------------------------------------------------


def same(count: int) -> bytes:
    return entry("usr/", FOLDER).tobuf() * count + END


def deep(count: int) -> bytes:
    """Returns files with 250 parent folders each, without entries for the folders."""
    return tar({f"{number}/{'d/' * 249}f": b"" for number in range(count)})


def test_hundred_thousand_entries_are_the_limit() -> None:
    assert ENTRIES_MAX == 100_000
    allowance = SizeAllowance(0)
    allowance.take_entry(ENTRIES_MAX - 2, 0)
    list(read_archive([same(1)], "none", allowance, FolderRules()))
    with pytest.raises(BadArchive) as caught:
        list(read_archive([same(1)], "none", allowance, FolderRules()))
    assert (caught.value.word, caught.value.entry) == ("too-many", "")
    assert "must have at most 100000 files, folders and links" in caught.value.reason


@pytest.fixture
def few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (archive_rules, root_filesystem):
        monkeypatch.setattr(module, "ENTRIES_MAX", 1_000)


@pytest.mark.usefixtures("few_entries")
def test_entries_of_layers_and_implicit_folders_are_counted_once(tmp_path: Path) -> None:
    assert checked(saved(same(200), gzipped(same(700)))) is None
    assert checked(saved(gzipped(deep(2)))) is None
    refusal = image_refusal(saved(gzipped(deep(2)), gzipped(deep(2))))
    assert (refusal.word, refusal.entry) == ("too-many", "")
    assert "layers of an image together" in refusal.reason
    judge(deep(3))
    judge(deep(3).removesuffix(END) + deep(3))
    for kind, content in (("archive", deep(4)), ("oci_bundle", deep(4)), (None, saved(deep(4)))):
        with pytest.raises(BadArchive) as caught:
            unpacked(tmp_path / f"{kind}", content, kind or "docker_image")
        assert (caught.value.word, caught.value.entry) == ("too-many", "")


@pytest.mark.usefixtures("few_entries")
def test_folders_behind_links_are_counted_when_created(tmp_path: Path) -> None:
    def content(count: int) -> bytes:
        pairs = ((link(f"l{n}", f"{n}/" + "d/" * 199), file(f"l{n}/f")) for n in range(count))
        return saved(layer(*(one for pair in pairs for one in pair)))

    unpacked(tmp_path / "few", content(4))
    with pytest.raises(BadArchive) as caught:
        unpacked(tmp_path / "many", content(6))
    assert caught.value.word == "too-many"


@pytest.mark.parametrize("kind", [FOLDER, LINK, HARD, FILE])
@pytest.mark.parametrize("rules", [FolderRules, RootRules])
def test_empty_entry_counts_as_one_block(kind: bytes, rules: type[Rules]) -> None:
    content = tar({}, [entry(f"e{number}", kind, "x") for number in range(100)])
    for blocks, is_accepted in ((140, True), (99, False)):
        allowance = SizeAllowance(len(content))
        allowance.max_bytes = blocks * DISK_BLOCK_BYTES
        reading = read_archive([content], "none", allowance, rules())
        if is_accepted:
            assert len(list(reading)) == 100
        else:
            with pytest.raises(BadArchive) as caught:
                list(reading)
            assert caught.value.word == "too-high"


def test_large_file_is_not_counted_twice() -> None:
    content = tar({f"f{number}": bytes(64 << 10) for number in range(16)})
    allowance = SizeAllowance(len(content))
    allowance.max_bytes = len(content)
    assert len(list(read_archive([content], "none", allowance, FolderRules()))) == 16


# Disk reserve -------------------------------------------------------------------------------------

MANY: Final = 1_200


def of_kind(kind: str, entry_kind: bytes, count: int) -> bytes:
    inside = "rootfs/" if kind == "oci_bundle" else ""
    target = "config.json" if entry_kind == HARD else "x"
    if entry_kind == HARD and inside:
        target = f"{inside}0"
    entries = [entry(f"{inside}{number}", entry_kind, target) for number in range(1, count)]
    files = {"config.json": CONFIG, f"{inside}0": b"", **MANIFEST}
    content = tar(files, entries)
    return saved(content) if kind == "docker_image" else content


class Disk:
    """File system statistics in which each entry takes one block and one inode."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocks_free = self.inodes_free = self.inodes = 1 << 30

    def entries(self) -> int:
        return sum(len(folders) + len(files) for _, folders, files in os.walk(self.folder / "root"))

    def __call__(self, _: object) -> SimpleNamespace:
        entries = self.entries()
        inodes_free = self.inodes_free - entries if self.inodes else 0
        return SimpleNamespace(
            f_bavail=self.blocks_free - entries,
            f_frsize=4_096,
            f_files=self.inodes,
            f_favail=inodes_free,
        )


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(tmp_path)
    monkeypatch.setattr(os, "statvfs", disk)
    return disk


@pytest.mark.parametrize("kind", ["archive", "oci_bundle", "docker_image"])
@pytest.mark.parametrize("entry_kind", one_of(4, [FOLDER, LINK, HARD, FILE]))
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
    assert MANY // 2 <= disk.entries() <= MANY // 2 + 100
    # Logs and builds use the same disk reserve.
    assert is_disk_short(tmp_path, reserve_blocks * 4_096)


@pytest.mark.parametrize("kind", ["archive", "docker_image"])
def test_implicit_folders_reserve_space(tmp_path: Path, disk: Disk, kind: str) -> None:
    disk.inodes_free = INODES_FREE + 600
    content = saved(deep(8)) if kind == "docker_image" else deep(8)
    with pytest.raises(OSError, match="reserve"):
        unpacked(tmp_path, content, kind)
    assert disk.entries() <= 700


def test_file_system_without_inode_counts_is_not_short(tmp_path: Path, disk: Disk) -> None:
    disk.inodes = 0
    root = unpacked(tmp_path, of_kind("archive", FOLDER, MANY), "archive")
    assert len(list(root.iterdir())) == MANY + 2


def test_inodes_of_a_small_disk_are_not_exhausted(tmp_path: Path) -> None:
    content = gzipped(of_kind("archive", FOLDER, 5_000))
    assert len(content) < 40_000
    with disk_of(tmp_path / "disk", 4_000) as small:
        (small / "root").mkdir()
        with pytest.raises(OSError, match="reserve of space or inodes") as caught:
            unpack(io.BytesIO(content), small, "archive", "gzip", len(content))
        assert caught.value.errno == errno.ENOSPC
        assert 100 <= os.statvfs(small).f_favail <= 200, "a twentieth of the inodes is reserved"
