"""Rules for the tar archive of a build: every compression, fed in chunks of every size."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from pyservice.runtime.archive_rules import (
    FREE_BYTES,
    RATIO_MAX,
    UNPACKED_MAX_BYTES,
    BadArchive,
    SizeAllowance,
)
from pyservice.runtime.archive_validation import ArchiveValidator, PackedLayers
from pyservice.runtime.decompression import COMPRESSIONS
from tests.control.files import bomb, entry, gzipped, packed, tar

LINK, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def judge(
    content: bytes, compression: str = "none", step: int = 1 << 16, *, is_image: bool = False
) -> None:
    layers = PackedLayers(SizeAllowance(len(content))) if is_image else None
    archive = ArchiveValidator(compression, SizeAllowance(len(content)), layers=layers)
    for start in range(0, len(content), step):
        collections.deque(archive.feed(content[start : start + step]), maxlen=0)
    collections.deque(archive.finish(), maxlen=0)


def refusal(content: bytes, compression: str = "none", *, is_image: bool = False) -> BadArchive:
    with pytest.raises(BadArchive) as caught:
        judge(content, compression, is_image=is_image)
    return caught.value


def word(content: bytes, compression: str = "none") -> str:
    return refusal(content, compression).word


LONG = "folder/" * 30 + "server.json"
GOOD = {
    "files": tar({"server.json": b"{}", "./bin/run": b"x" * 5000, LONG: b"", "a//b": b"y" * 512}),
    "folders": tar({}, [entry("./", FOLDER), entry("bin/", FOLDER)]),
    "links": tar(
        {"lib/libx.so.1": b"x"},
        [entry("lib/libx.so", LINK, "libx.so.1"), entry("bin/up", LINK, "../lib/libx.so")],
    ),
    "a link to the root": tar({}, [entry("bin/root", LINK, "..")]),
    "a hard link": tar({"a": b"x"}, [entry("b/c", HARD, "a")]),
    "links in a circle": tar({}, [entry("a", LINK, "b"), entry("b", LINK, "a")]),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("step", [1, 511, 512, 513, 1 << 20])
def test_links_within_the_build_are_accepted(name: str, step: int) -> None:
    judge(GOOD[name], step=step)
    for compression in COMPRESSIONS:
        judge(packed(GOOD[name], compression), compression, step=step)


BAD = {
    "a folder above": tar({"../x": b"x"}),
    "a folder above, inside": tar({"a/../../x": b"x"}),
    "an absolute path": tar({"/x": b"x"}),
    "a long absolute path": tar({"/" + LONG: b"x"}),
    "an absolute link": tar({}, [entry("a", LINK, "/etc/passwd")]),
    "a link above": tar({}, [entry("a/b", LINK, "../../x")]),
    "a long link above": tar({}, [entry("a", LINK, "../" * 60)]),
    "a link above by another link": tar(
        {}, [entry("x/y", LINK, ".."), entry("z", LINK, "x/y/../..")]
    ),
    "a link above by a later link": tar({}, [entry("z", LINK, "x/y/.."), entry("x/y", LINK, "..")]),
    "a file behind a link": tar({}, [entry("a", LINK, "b"), entry("a/c", FOLDER)]),
    "a file in place of a link": tar({}, [entry("a", LINK, "b"), entry("a", FOLDER)]),
    "a hard link above": tar({}, [entry("a", HARD, "../x")]),
    "a hard link to a link": tar({}, [entry("a/b", LINK, ".."), entry("c", HARD, "a/b")]),
    "a device": tar({}, [entry("a", tarfile.BLKTYPE)]),
    "a pipe": tar({}, [entry("a", tarfile.FIFOTYPE)]),
}


@pytest.mark.parametrize("name", BAD)
def test_paths_outside_of_the_build_are_rejected(name: str) -> None:
    assert word(BAD[name]) in ("not-allowed", "not-unique")
    for compression in COMPRESSIONS:
        found = word(packed(BAD[name], compression), compression)
        assert found in ("not-allowed", "not-unique")


def test_incomplete_tar_is_rejected() -> None:
    whole = tar({"a": b"x" * 5000})
    for content in (b"", b"\0" * 10240, b"x" * 10240, whole[:2000], whole[:100], gzipped(whole)):
        assert word(content) == "invalid"
    for compression in COMPRESSIONS:
        file = packed(whole, compression)
        for content in (whole, file[: len(file) // 2], file + b"x", b""):
            assert word(content, compression) == "invalid", compression
        # Consecutive compressed frames form one file.
        judge(packed(whole[:700], compression) + packed(whole[700:], compression), compression)
    broken = bytearray(whole)
    broken[0] ^= 1
    assert word(bytes(broken)) == "invalid"


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("step", [999, 1 << 20])
def test_consecutive_large_frames_form_one_file(compression: str, step: int) -> None:
    whole = tar({"a": bytes(3 << 20), "b": os.urandom(3 << 20)})
    frames = (packed(whole[at : at + (2 << 20)], compression) for at in range(0, 7 << 20, 2 << 20))
    judge(b"".join(frames), compression, step)


MIB, GIB = 1 << 20, 1 << 30


def test_build_may_unpack_to_a_hundred_times_its_size_or_one_gib() -> None:
    sizes = {
        0: GIB,
        2 * MIB: GIB,
        10 * MIB: 1_024 * MIB,
        11 * MIB: 1_100 * MIB,
        100 * MIB: 10_000 * MIB,
        327 * MIB: 32_700 * MIB,
        328 * MIB: 32 * GIB,
        8 * GIB: 32 * GIB,
    }
    assert {packed_bytes: SizeAllowance(packed_bytes).max_bytes for packed_bytes in sizes} == sizes
    assert (FREE_BYTES, RATIO_MAX, UNPACKED_MAX_BYTES) == (GIB, 100, 32 * GIB)


def test_announced_size_over_the_limit_is_rejected_before_the_data() -> None:
    large = tarfile.TarInfo("large")
    large.size = 1 << 40
    content = large.tobuf() + b"\0" * 4096
    assert word(content) == "too-high"
    for compression in COMPRESSIONS:
        assert word(packed(content, compression), compression) == "too-high"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_decompression_bomb_is_rejected_early(
    compression: str,
) -> None:
    content = bomb(compression)
    assert len(content) * 240 < 3 * GIB
    allowance = SizeAllowance(len(content))
    archive = ArchiveValidator(compression, allowance)
    pieces = (content[start : start + 4_096] for start in range(0, len(content), 4_096))
    with pytest.raises(BadArchive) as caught:
        collections.deque((step for piece in pieces for step in archive.feed(piece)), maxlen=0)
    assert sum(map(len, pieces)) > len(content) * 0.55, "and nothing more is read of it"
    assert caught.value.word == "too-high"
    reason = caught.value.reason
    told = re.fullmatch(r"unpacks to at least (\d+) bytes, and (\d+) bytes .* (\d+) \(.*", reason)
    assert told, reason
    unpacked_bytes, *rest = map(int, told.groups())
    assert rest == [len(content), allowance.max_bytes]
    assert 0 < unpacked_bytes - allowance.max_bytes <= 16 * MIB
    assert "upload it with less compression" in reason


def test_large_build_within_the_limit_is_accepted() -> None:
    content = bomb("zstd", GIB - 16 * MIB)
    assert len(content) < MIB
    judge(content, "zstd")
    # Data after the end of the tar is decompressed too.
    behind = content + packed(bytes(1024), "zstd") + packed(bytes(64 * MIB), "zstd")
    assert word(behind, "zstd") == "too-high"


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_image_layers_count_together_in_any_packing(
    compression: str,
) -> None:
    half = bomb(compression, 640 * MIB)
    judge(tar({"1/layer.tar": half, "plain": b"x" * MIB}), is_image=True)
    both = tar({"1/layer.tar": half, "plain": b"x" * MIB, "2/layer.tar": half})
    judge(both)
    assert "unpacks to at least" in refusal(both, is_image=True).reason
    assert refusal(packed(both, "gzip"), "gzip", is_image=True).word == "too-high"


def test_file_that_only_starts_like_a_layer_is_not_counted_as_one() -> None:
    files = {"a": b"\x1f\x8bno gzip" * 9_000, "b": b"\x28\xb5\x2f\xfd" * 9_000, "c": b"\x1f"}
    judge(tar({**files, "cut": packed(tar(), "gzip")[:30]}), step=7, is_image=True)


def test_oversized_pax_attributes_are_rejected() -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    assert word(header.tobuf() + bytes(4096)) == "invalid"
    name = tarfile.TarInfo("name")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    assert word(name.tobuf() + bytes(4096)) == "invalid"
    sparse = tarfile.TarInfo("sparse")
    sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.size": "99999999999"}
    assert word(sparse.tobuf(tarfile.PAX_FORMAT) + bytes(1024)) == "invalid"


WORDS = st.sampled_from(["a", "b", "c", ".", "..", ""])
PATHS = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool)
ENTRIES = st.lists(
    st.tuples(PATHS, st.sampled_from([LINK, HARD, FOLDER, tarfile.REGTYPE]), PATHS),
    min_size=1,
    max_size=6,
)


def _unpack(folder: Path, name: str, kind: bytes, target: str) -> None:
    path = f"{folder}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if kind == LINK:
        os.symlink(target, path)
    elif kind == HARD:
        os.link(f"{folder}/{target}", path, follow_symlinks=False)
    elif kind == FOLDER:
        os.mkdir(path)
    else:
        Path(path).write_bytes(b"x")


def is_accepted(entries: list[tuple[str, bytes, str]]) -> bool:
    try:
        judge(tar({}, [entry(*one) for one in entries]))
    except BadArchive:
        return False
    return True


def test_some_generated_archives_with_files_and_links_are_accepted() -> None:
    find(
        ENTRIES,
        lambda entries: (
            {LINK, tarfile.REGTYPE} <= {one[1] for one in entries} and is_accepted(entries)
        ),
    )


@settings(max_examples=400, deadline=None)
@given(ENTRIES)
def test_accepted_archive_writes_nothing_outside_when_unpacked(
    entries: list[tuple[str, bytes, str]],
) -> None:
    if not is_accepted(entries):
        return
    with tempfile.TemporaryDirectory() as name:
        outer = Path(name)
        target = outer / "1" / "2" / "3"
        target.mkdir(parents=True)
        for one in entries:
            with contextlib.suppress(OSError):
                _unpack(target, *one)
        for path in target.rglob("*"):
            # A cycle of links has no target.
            try:
                resolved = path.resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            assert resolved.is_relative_to(target), path
        assert [path for path in outer.rglob("*") if not path.is_relative_to(target)] == [
            outer / "1",
            outer / "1" / "2",
        ]
