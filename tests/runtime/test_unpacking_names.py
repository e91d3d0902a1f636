"""File names that no file system accepts: the validation of the build rejects them. Other errors
do not reveal the path.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from pyservice.runtime.archive_rules import PATH_MAX_BYTES, BadArchive, RootRules, SizeAllowance
from pyservice.runtime.archive_validation import ArchiveValidator
from tests.control.files import entry, gzipped, packed, tar
from tests.programs.images import file, layer, link, saved
from tests.runtime.test_archive_validation import judge, refusal
from tests.runtime.test_build_unpacking import MANIFEST
from tests.runtime.unpacked_trees import unpacked, unpacked_apart

LINK, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
NAME = "n" * 256
UMLAUTS = "ä" * 128
PATH = "/".join(["p" * 200] * 16)


def with_nul() -> bytes:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"path": "a\0b"}
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


LONG = {
    "a file": (tar({NAME: b"x"}), "too-long", "longer than 255 bytes"),
    "a name in bytes": (tar({UMLAUTS: b"x"}), "too-long", "longer than 255 bytes"),
    "a folder": (tar({}, [entry(f"{NAME}/", FOLDER)]), "too-long", "longer than 255 bytes"),
    "a folder above": (tar({f"a/{NAME}/b": b"x"}), "too-long", "longer than 255 bytes"),
    "a link": (tar({}, [entry(f"a/{NAME}", LINK, "b")]), "too-long", "longer than 255 bytes"),
    "another name": (tar({"b": b""}, [entry(NAME, HARD, "b")]), "too-long", "longer than 255"),
    "a path": (tar({PATH: b"x"}), "too-long", "longer than 3072 bytes"),
    "a link's target": (tar({}, [entry("a", LINK, "b/" * 2_048)]), "too-long", "than 4095 bytes"),
    "a NUL": (with_nul(), "invalid", "has a NUL"),
}


def in_root(content: bytes) -> None:
    archive = ArchiveValidator("none", SizeAllowance(len(content)), rules=RootRules())
    list(archive.feed(content))
    list(archive.finish())


@pytest.mark.parametrize("name", LONG)
def test_name_that_no_file_system_accepts_is_rejected_by_validation(name: str) -> None:
    content, word, words = LONG[name]
    with pytest.raises(BadArchive) as of_bundle:
        in_root(content)
    images = (saved(content), saved(gzipped(content)), saved(layer(file("a")), content))
    of_images = [refusal(image, is_image=True) for image in images]
    for refused in (refusal(content), of_bundle.value, *of_images):
        assert refused.word == word
        assert words in refused.reason
        assert refused.entry
        assert len(refused.entry) <= 256


def test_names_of_the_maximum_length_are_unpacked(tmp_path: Path) -> None:
    path = "/".join(["p" * 255] * 12)
    assert len(path) + 1 == PATH_MAX_BYTES, "one more is no name"
    content = tar({"server.json": MANIFEST, path: b"x"}, [entry("l", LINK, "x" * 255)])
    judge(content)
    in_root(content)
    judge(saved(content), is_image=True)
    deep_place = tmp_path / "d"
    assert (unpacked(deep_place, content, "archive") / path).read_text() == "x"
    assert (unpacked(tmp_path / "i", saved(content)) / path).read_text() == "x"


def test_image_file_that_is_no_layer_has_no_names_to_check() -> None:
    files = {"a": b"n" * 5_000, "b": b"{}", "c": tar({"x": b"y"})[:700], "d": bytes(4_096)}
    judge(tar({**files, "e": packed(b"no tar" * 900, "zstd")}), step=7, is_image=True)


def test_system_error_does_not_reveal_the_path(tmp_path: Path) -> None:
    """Behind a link a path becomes too long although each name in the archive is short enough."""
    content = saved(layer(link("a", "x" * 300), file("a/b", b"x")))
    (tmp_path / "root").mkdir()
    ended = unpacked_apart(tmp_path, "docker_image", content)
    assert (ended.returncode, ended.stderr) == (1, b"File name too long\n")
    with pytest.raises(OSError, match="File name too long"):
        unpacked(tmp_path / "again", content)


def test_full_disk_error_does_not_reveal_the_path(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    ended = unpacked_apart(tmp_path, "archive", tar(), reserve_bytes=1 << 60)
    assert ended.returncode == 28
    assert ended.stderr == b"the disk came down to its reserve of space or inodes\n"
