"""Differences between two tar readers: the validator of builds and the unpacker must see the same
entries.
"""

from __future__ import annotations

import collections
import io
import os
import tarfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from pyservice.runtime.archive_rules import FILES, FOLDER, BadArchive, FolderRules, SizeAllowance
from pyservice.runtime.archive_validation import ArchiveValidator, normal_path
from pyservice.runtime.build_unpacking import DiskReserve, _Folder, unpack
from tests.control.files import MANIFEST, entry, tar
from tests.runtime.test_archive_validation import refusal

LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE
BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
Seen = tuple[str, str, str]
"""Kind, name and link target."""


def header(name: bytes, kind: bytes, *, size: int = 0, link: bytes = b"", **more: bytes) -> bytes:
    """Returns one header block with its checksum. Without `magic` and `prefix`, the header is an
    ustar header.
    """
    block = bytearray(BLOCK)
    block[:100] = name.ljust(100, b"\0")
    block[100:156] = b"0000644\x00" + b"0000000\x00" * 2 + b"%011o\x00" % size + bytes(20)
    block[156:157] = kind
    block[157:257] = link.ljust(100, b"\0")
    block[257:265] = more.get("magic", b"ustar\x0000")
    block[345:500] = more.get("prefix", b"").ljust(155, b"\0")
    block[148:156] = b"%06o\x00 " % (sum(block) + 8 * 32)
    assert len(block) == BLOCK
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


SECRETS: Final = [
    entry("up", LINK, "../../.."),
    entry("stolen", HARD, "up/secret"),
]


def hidden() -> bytes:
    return b"".join(one.tobuf() for one in SECRETS)


def in_a_folder() -> bytes:
    """One reader skips the data after an old folder entry as content; the other reads the data as
    an entry.
    """
    return header(b"x/", b"\0", size=len(hidden())) + hidden()


def behind_attributes() -> bytes:
    """Returns an archive with pax attributes that begin at their declared end."""
    told = pax(comment="x")
    return header(b"pax", b"x", size=len(told)) + padded(told, pax(path="up", linkpath="../../.."))


def behind_a_long_name() -> bytes:
    """Returns an archive with a long name that continues after its declared end."""
    long = header(b"././@LongLink", b"K", size=4) + padded(b"a/..", b"/../../..\0")
    return long + header(b"a/up", LINK, link=b"a")


def of_another_header() -> bytes:
    """Only ustar headers have a prefix, but one reader applies the field to every header."""
    old = header(b"up", LINK, link=b"..", magic=b"ustar  \0", prefix=b"a/b/c")
    return entry("a/b/c/d", tarfile.DIRTYPE).tobuf() + old


TRICKS: Final = (in_a_folder, behind_attributes, behind_a_long_name, of_another_header)


def with_trick(trick: bytes) -> bytes:
    whole = tar({**MANIFEST, "y": b"y"})
    return trick + whole


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.__name__)
def test_ambiguous_archive_is_rejected(trick: object, tmp_path: Path) -> None:
    assert callable(trick)
    content = with_trick(trick())
    assert refusal(content).word in ("invalid", "not-allowed")
    (tmp_path / "secret").write_text("nobody's")
    root = tmp_path / "1" / "2" / "root"
    root.mkdir(parents=True)
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(content), root.parent, "archive", "none", len(content), 0)
    assert not (root / "stolen").exists()


def test_unpacker_validates_each_entry_again(tmp_path: Path) -> None:
    """The unpacker validates each entry again, in case the readers differ in another way."""
    (tmp_path / "secret").write_text("nobody's")
    root = tmp_path / "1" / "2" / "root"
    root.mkdir(parents=True)
    folder = _Folder(root, DiskReserve(root, 0))
    with tarfile.open(fileobj=io.BytesIO(hidden() + END)) as archive:
        up, stolen = archive
        folder.add(archive, up)
        with pytest.raises(BadArchive):
            folder.add(archive, stolen)
    assert not (root / "stolen").exists()


class Noted(FolderRules):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []

    def entry(self, kind: int, name: bytes, link: bytes) -> None:
        self.seen.append(_seen(kind, os.fsdecode(name), os.fsdecode(link)))


def _seen(kind: int, name: str, link: str) -> Seen:
    is_link = kind in (LINK[0], HARD[0])
    return "file" if kind in FILES else chr(kind), normal_path(name), link if is_link else ""


NAMES: Final = st.sampled_from([b"a", b"b/", b"a/b", b"../c", b"", b"/d", b"\xffe", b"x" * 100])
KINDS: Final = st.sampled_from([b"\0", b"0", b"1", b"2", b"5", b"7"])
MAGICS: Final = st.sampled_from([b"ustar\x0000", b"ustar  \0", bytes(8), b"ustar\x00  "])
PLAIN: Final = st.builds(
    lambda name, kind, size, link, magic, prefix: (
        header(name, kind, size=size, link=link, magic=magic, prefix=prefix)
        + hidden()[: size - size % BLOCK]
    ),
    NAMES,
    KINDS,
    st.sampled_from([0, BLOCK, 2 * BLOCK]),
    NAMES,
    MAGICS,
    st.sampled_from([b"", b"", b"p", b"\0q"]),
)
FIELDS: Final = st.dictionaries(
    st.sampled_from(["path", "linkpath", "size", "comment", "hdrcharset"]),
    st.sampled_from(["", "a", "b/", "../c", "512", "0", "BINARY", "ä", "a=b"]),
    max_size=2,
)
ATTRIBUTES: Final = st.builds(
    lambda fields, more: (
        header(b"pax", b"x", size=len(pax(**fields))) + padded(pax(**fields), pax(**more))
    ),
    FIELDS,
    st.one_of(st.just({}), FIELDS),
)
LONGER: Final = st.builds(
    lambda kind, name, more: header(b"long", kind, size=len(name)) + padded(name, more),
    st.sampled_from([b"L", b"K"]),
    st.sampled_from([b"a\0", b"b/\0", b"c", b"\0", b"../d\0"]),
    st.sampled_from([b"", b"", b"e", b"\0f"]),
)
TARS: Final = st.lists(st.one_of(PLAIN, ATTRIBUTES, LONGER), min_size=1, max_size=5)


def read_by_both(parts: list[bytes]) -> tuple[list[Seen], list[Seen]] | None:
    """Returns the entries that the validator and tarfile read. None means that a reader rejects
    the tar.
    """
    content = b"".join(parts) + END
    rules = Noted()
    validator = ArchiveValidator("none", SizeAllowance(len(content)), rules=rules)
    try:
        collections.deque(validator.feed(content), maxlen=0)
        collections.deque(validator.finish(), maxlen=0)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r|") as archive:
            read = [_seen(one.type[0], one.name, one.linkname) for one in archive]
    except (BadArchive, tarfile.TarError):
        return None
    return rules.seen, read


@settings(max_examples=1_000, deadline=None)
@given(TARS)
def test_validator_and_tarfile_read_the_same_entries(parts: list[bytes]) -> None:
    both = read_by_both(parts)
    if both is not None:
        validated, read = both
        assert read == validated, parts


def test_some_generated_tars_with_several_entries_are_accepted() -> None:
    find(
        TARS,
        lambda parts: len((read_by_both(parts) or ([], []))[1]) > 1,
        settings=settings(max_examples=5_000, deadline=None),
    )


def test_old_style_folder_entries_are_folders() -> None:
    rules = Noted()
    content = header(b"x/", b"\0", magic=bytes(8)) + END
    collections.deque(
        ArchiveValidator("none", SizeAllowance(0), rules=rules).feed(content), maxlen=0
    )
    assert rules.seen == [(chr(FOLDER), "x", "")]
