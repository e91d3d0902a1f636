"""Small builds of large unpacked size: unpacking rejects them before they fill the disk."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.archive_rules import BadArchive, SizeAllowance
from pyservice.runtime.build_unpacking import unpack
from tests.control.files import bomb, packed, tar
from tests.programs.images import saved
from tests.runtime.build_store import Store
from tests.runtime.test_build_unpacking import BUILD, GAME, opened, refused

pytestmark = pytest.mark.anyio

MIB, GIB = 1 << 20, 1 << 30
CONFIG: Final = b'{"process": {"args": ["/run"]}, "root": {"path": "rootfs"}}'


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
async def test_archive_bomb_is_rejected_with_a_remedy(tmp_path: Path, compression: str) -> None:
    content = bomb(compression)
    told = await refused(tmp_path / "builds", Store(content, compression))
    found = re.match(r"unpacks to at least (\d+) bytes, and (\d+) bytes may .* at most (\d+)", told)
    assert found, told
    unpacked_bytes, length, max_bytes = map(int, found.groups())
    assert (length, max_bytes) == (len(content), SizeAllowance(len(content)).max_bytes)
    assert max_bytes < unpacked_bytes < 1.5 * GIB, "and not when all of it is unpacked"
    assert "leave out what the server does not need" in told


async def test_small_well_compressed_build_is_unpacked(tmp_path: Path) -> None:
    content = bomb("zstd", 256 * MIB)
    assert len(content) * 1_000 < 256 * MIB
    build = await opened(tmp_path / "builds", Store(content, "zstd")).unpacked(GAME, BUILD)
    assert (build.root / "zeros").stat().st_size == 16 * MIB


def layers(compression: str) -> bytes:
    return saved(*[bomb(compression, 640 * MIB)] * 2)


def bundle(compression: str) -> bytes:
    begin = packed(tar({"config.json": CONFIG})[: 2 * 512], compression)
    return begin + bomb(compression, 2 * GIB, "rootfs/zeros")


BOMBS: Final = {
    "layers in gzip": ("docker_image", "none", layers("gzip")),
    "layers in zstd": ("docker_image", "none", layers("zstd")),
    "layers in an archive in zstd": ("docker_image", "zstd", packed(layers("gzip"), "zstd")),
    "the archive around layers": ("docker_image", "gzip", bomb("gzip", 2 * GIB)),
    "a bundle in gzip": ("oci_bundle", "gzip", bundle("gzip")),
    "a bundle in zstd": ("oci_bundle", "zstd", bundle("zstd")),
}


@pytest.mark.parametrize("name", BOMBS)
def test_image_or_bundle_bomb_is_rejected(tmp_path: Path, name: str) -> None:
    kind, compression, content = BOMBS[name]
    (tmp_path / "root").mkdir()
    with pytest.raises(BadArchive) as caught:
        unpack(io.BytesIO(content), tmp_path, kind, compression, len(content))
    assert (caught.value.word, caught.value.entry) == ("too-high", "")
    assert f"{len(content)} bytes may unpack to at most {GIB} " in caught.value.reason
    left = (os.path.getsize(path) for path in tmp_path.rglob("*") if path.is_file())
    assert sum(left) < 64 * MIB
