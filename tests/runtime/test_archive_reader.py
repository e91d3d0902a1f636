"""Reader of archives: it reads what tarfile reads, and refuses hostile or ambiguous archives."""

from __future__ import annotations

import collections
import io
import os
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyservice.runtime.archive_reader import read_archive
from pyservice.runtime.archive_rules import (
    FILES,
    FREE_BYTES,
    RATIO_MAX,
    UNPACKED_MAX_BYTES,
    BadArchive,
    FolderRules,
    SizeAllowance,
)
from pyservice.runtime.build_unpacking import unpack
from pyservice.runtime.decompression import COMPRESSIONS
from tests.runtime.archive_judgement import blocks, judge, refusal
from tests.support.upload_files import MANIFEST, bomb, entry, gzipped, packed, tar

LINK, HARD, FOLDER, FILE = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.REGTYPE
BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
MIB, GIB = 1 << 20, 1 << 30


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
def test_archive_is_accepted_in_blocks_of_every_size(name: str, step: int) -> None:
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
    "a link above by a link": tar({}, [entry("x/y", LINK, ".."), entry("z", LINK, "x/y/../..")]),
    "a link above by a later link": tar({}, [entry("z", LINK, "x/y/.."), entry("x/y", LINK, "..")]),
    "a file behind a link": tar({}, [entry("a", LINK, "b"), entry("a/c", FOLDER)]),
    "a file in place of a link": tar({}, [entry("a", LINK, "b"), entry("a", FOLDER)]),
    "a hard link above": tar({}, [entry("a", HARD, "../x")]),
    "a hard link to a link": tar({}, [entry("a/b", LINK, ".."), entry("c", HARD, "a/b")]),
    "a device": tar({}, [entry("a", tarfile.BLKTYPE)]),
    "a pipe": tar({}, [entry("a", tarfile.FIFOTYPE)]),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("compression", ["none", *COMPRESSIONS])
def test_paths_outside_of_the_build_are_rejected(name: str, compression: str) -> None:
    content = BAD[name] if compression == "none" else packed(BAD[name], compression)
    assert refusal(content, compression).word in ("not-allowed", "not-unique")


# Headers ------------------------------------------------------------------------------------------

NAMES: Final = st.sampled_from(["a", "b/", "a/b", "ä/ö", "x" * 100, "y/" * 90 + "z", "\udcffe"])
OWNERS: Final = st.sampled_from([0, 1000, 65_535, 1 << 21, 1 << 40])
Written = list[tuple[str, bytes, str, bytes, int, int, int]]
WRITTEN: Final = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from([FILE, FILE, LINK, HARD, FOLDER, tarfile.CHRTYPE]),
        NAMES,
        st.sampled_from([b"", b"content", bytes(BLOCK), b"x" * 700]),
        st.sampled_from([0o644, 0o4755, 0]),
        OWNERS,
        OWNERS,
    ),
    min_size=1,
    max_size=5,
)


class NoRules:
    def entry(self, kind: int, name: bytes, link: bytes) -> None:
        pass

    def finish(self) -> None:
        pass


FORMATS: Final = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


@given(written=WRITTEN, format=FORMATS, step=st.sampled_from([7, 512, 1 << 16]))
def test_reader_and_tarfile_read_the_same_entries(written: Written, format: int, step: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, kind, link, content, mode, uid, gid in written:
            is_ustar = format == tarfile.USTAR_FORMAT
            info = entry(name, kind, "a" if is_ustar and len(link) > 90 else link)
            info.size = len(content) if kind == FILE else 0
            limit = (1 << 21) - 1 if is_ustar else 1 << 62
            info.mode, info.uid, info.gid = mode, min(uid, limit), min(gid, limit)
            archive.addfile(info, io.BytesIO(content))
    entries = []
    stream = blocks(buffer.getvalue(), step)
    for one in read_archive(stream, "none", SizeAllowance(0), NoRules()):
        fields = (one.name.rstrip("/"), one.link, one.mode, one.uid, one.gid)
        entries.append((bytes([one.kind]), *fields, b"".join(one.content)))
    expected = []
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as archive:
        for info in archive:
            fields = (info.name.rstrip("/"), info.linkname, info.mode, info.uid, info.gid)
            file = archive.extractfile(info) if info.isreg() else None
            expected.append((info.type, *fields, file.read() if file else b""))
    assert entries == expected
    assert len(entries) == len(written)


def header(name: bytes, kind: bytes, *, size: int = 0, link: bytes = b"", **more: bytes) -> bytes:
    """Returns one ustar header, unless `magic` and `prefix` say another format."""
    block = bytearray(BLOCK)
    block[:100] = name.ljust(100, b"\0")
    block[100:156] = b"0000644\x00" + b"0000000\x00" * 2 + b"%011o\x00" % size + bytes(20)
    block[156:157] = kind
    block[157:257] = link.ljust(100, b"\0")
    block[257:265] = more.get("magic", b"ustar\x0000")
    block[345:500] = more.get("prefix", b"").ljust(155, b"\0")
    block[148:156] = b"%06o\x00 " % (sum(block) + 8 * 32)
    return bytes(block)


def padded(content: bytes, padding: bytes = b"") -> bytes:
    return content + padding.ljust(-len(content) % BLOCK, b"\0")


def pax(**fields: str) -> bytes:
    content = b""
    for name, value in fields.items():
        rest = f" {name}={value}\n".encode()
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length += 1
        content += str(length).encode() + rest
    return content


def attributes(kind: bytes = b"x", hidden: bytes = b"", **fields: str) -> bytes:
    return padded_pax(fields, kind, hidden)


def padded_pax(fields: dict[str, str], kind: bytes = b"x", hidden: bytes = b"") -> bytes:
    content = pax(**fields)
    return header(b"pax", kind, size=len(content)) + padded(content, hidden)


def long_link(padding: bytes) -> bytes:
    long = header(b"././@LongLink", b"K", size=4) + padded(b"a/..", padding)
    return long + header(b"a/up", LINK, link=b"a")


HIDDEN: Final = entry("up", LINK, "../../..").tobuf() + entry("stolen", HARD, "up/secret").tobuf()
UP: Final = {"path": "up", "linkpath": "../../.."}
# Some readers take the hidden part of the first archive for an entry or a name, and others skip it.
# The second archive has the same form and nothing hidden.
AMBIGUOUS: Final = {
    "a folder with content": (header(b"x/", b"\0", size=1024) + HIDDEN, header(b"x/", b"\0")),
    "attributes after their end": (
        attributes(hidden=pax(**UP), comment="x"),
        attributes(comment="x", path="y"),
    ),
    "a long name after its end": (long_link(b"/../../..\0"), long_link(b"")),
    "a prefix of an old format": (
        header(b"up", LINK, link=b"..", magic=b"ustar  \0", prefix=b"a/b/c"),
        header(b"up", LINK, link=b"..", prefix=b"a/b/c"),
    ),
    "two paths": (attributes(path="a") + attributes(path="b"), attributes(path="a")),
    "one path for all": (attributes(b"g", path="a"), attributes(b"g", comment="a")),
    "a sparse file": (padded_pax({"GNU.sparse.major": "1"}), attributes(comment="1")),
    "endless attributes": (header(b"pax", b"x", size=1 << 30), attributes(comment="a" * 9_000)),
    "an endless name": (header(b"long", b"L", size=1 << 30), b""),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguous_archive_is_rejected(name: str, tmp_path: Path) -> None:
    bad, good = (one + tar({**MANIFEST, "y": b"y"}) for one in AMBIGUOUS[name])
    assert refusal(bad).word in ("invalid", "not-allowed")
    judge(good)
    (tmp_path / "secret").write_text("of another user")
    root = tmp_path / "1" / "2" / "root"
    root.mkdir(parents=True)
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(bad), root.parent, "archive", "none", len(bad))
    assert not (root / "stolen").exists()


def test_old_style_folder_entry_is_a_folder() -> None:
    content = header(b"x/", b"\0", magic=bytes(8)) + END
    (entry,) = read_archive([content], "none", SizeAllowance(0), FolderRules())
    assert (bytes([entry.kind]), entry.name) == (FOLDER, "x/")
    assert FOLDER[0] not in FILES


def test_incomplete_tar_is_rejected() -> None:
    whole = tar({"a": b"x" * 5000})
    broken = bytes([whole[0] ^ 1]) + whole[1:]
    for content in (b"", bytes(600), b"x" * 10240, whole[:2000], whole[:100], gzipped(whole)):
        assert refusal(content).word == "invalid"
    assert refusal(broken).word == "invalid"
    for compression in COMPRESSIONS:
        file = packed(whole, compression)
        for content in (whole, file[: len(file) // 2], file + b"x", b""):
            assert refusal(content, compression).word == "invalid", compression


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("step", [999, 1 << 20])
def test_consecutive_frames_form_one_file(compression: str, step: int) -> None:
    whole = tar({"a": bytes(3 << 20), "b": os.urandom(3 << 20)})
    frames = (packed(whole[at : at + (2 << 20)], compression) for at in range(0, 7 << 20, 2 << 20))
    judge(b"".join(frames), compression, step)


# Sizes --------------------------------------------------------------------------------------------


def test_build_may_unpack_to_a_hundred_times_its_size_or_one_gib() -> None:
    sizes = {0: GIB, 2 * MIB: GIB, 10 * MIB: 1_024 * MIB, 11 * MIB: 1_100 * MIB}
    sizes |= {100 * MIB: 10_000 * MIB, 327 * MIB: 32_700 * MIB, 328 * MIB: 32 * GIB}
    sizes |= {8 * GIB: 32 * GIB}
    assert {packed_bytes: SizeAllowance(packed_bytes).max_bytes for packed_bytes in sizes} == sizes
    assert (FREE_BYTES, RATIO_MAX, UNPACKED_MAX_BYTES) == (GIB, 100, 32 * GIB)


def test_announced_size_over_the_limit_is_rejected_before_the_data() -> None:
    content = header(b"large", FILE, size=(8 << 30) - 1) + bytes(4096)
    assert refusal(content).word == "too-high"
    for compression in COMPRESSIONS:
        assert refusal(packed(content, compression), compression).word == "too-high"


def judge_within(max_bytes: int, content: bytes, compression: str) -> tuple[BadArchive | None, int]:
    """Returns the refusal, and the length of the part that was not read."""
    allowance, rest = SizeAllowance(len(content)), iter(blocks(content, 512))
    allowance.max_bytes = max_bytes
    problem = None
    try:
        collections.deque(read_archive(rest, compression, allowance, FolderRules()), maxlen=0)
    except BadArchive as error:
        problem = error
    return problem, sum(map(len, rest))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_decompression_bomb_is_rejected_early(compression: str) -> None:
    content = bomb(compression, 192 * MIB)
    assert len(content) * 200 < 192 * MIB
    problem, unread = judge_within(64 * MIB, content, compression)
    assert unread > len(content) * 0.55
    assert problem is not None
    assert (problem.entry, problem.word) == ("", "too-high")
    match = re.match(
        r"unpacks to at least (\d+) bytes, and (\d+) bytes .* (\d+) \(", problem.reason
    )
    assert match, problem.reason
    unpacked_bytes, *limits = map(int, match.groups())
    assert limits == [len(content), 64 * MIB]
    assert 64 * MIB < unpacked_bytes <= 80 * MIB
    assert "upload it with less compression" in problem.reason


def test_build_within_the_limit_is_accepted_and_data_after_its_end_counts() -> None:
    content = bomb("zstd", 48 * MIB)
    assert judge_within(64 * MIB, content, "zstd") == (None, 0)
    more = content + packed(bytes(1024), "zstd") + packed(bytes(32 * MIB), "zstd")
    problem, _ = judge_within(64 * MIB, more, "zstd")
    assert problem is not None
    assert problem.word == "too-high"


# Any archive --------------------------------------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "c", ".", "..", ""])
PATHS = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool)
Entries = list[tuple[str, bytes, str]]
ENTRIES = st.lists(
    st.tuples(PATHS, st.sampled_from([LINK, HARD, FOLDER, FILE]), PATHS), min_size=1, max_size=6
)

ACCEPTED: Entries = [
    ("a/b", FILE, ""),
    ("c", LINK, "a"),
    ("a/d", HARD, "a/b"),
    ("e", LINK, "a/../c"),
]


def unpack_entries(folder: Path, entries: Entries) -> bool:
    content = tar(MANIFEST, [entry(*one) for one in entries])
    (folder / "root").mkdir(parents=True)
    try:
        unpack(io.BytesIO(content), folder, "archive", "none", len(content))
    except BadArchive:
        return False
    return True


@example(ACCEPTED)
@given(ENTRIES)
def test_archive_writes_nothing_outside_of_its_folder(entries: Entries) -> None:
    with tempfile.TemporaryDirectory() as name:
        outer, inner = Path(name), Path(name) / "1" / "2"
        is_accepted = unpack_entries(inner, entries)
        assert is_accepted or entries != ACCEPTED
        for path in (inner / "root").rglob("*") if is_accepted else ():
            # A cycle of links has no target.
            try:
                resolved = path.resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            assert resolved.is_relative_to(inner / "root"), path
        outside = [path for path in outer.rglob("*") if not path.is_relative_to(inner / "root")]
        assert sorted(outside) == [outer / "1", inner]
