"""A store of builds in memory, from which a runtime host unpacks."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from pyservice.runtime.unpacked_builds import BuildSource, BuildUnusable, UnpackedBuilds
from tests.support.upload_files import entry

GAME, BUILD = "game", "0192f000-0000-7000-8000-0000000000e1"
MANIFEST: Final = b'{"command": ["./run"]}'


class Store:
    def __init__(
        self, archive: bytes = b"", compression: str = "none", sha256: str | None = None
    ) -> None:
        self.source = (archive, compression, sha256)
        self.archives: dict[str, bytes] = {}
        self.images: set[str] = set()
        """Builds of `archives` that are container images."""
        self.requests: list[str] = []
        self.fault: Exception | None = None

    async def __call__(self, game_id: str, build_id: str) -> BuildSource:
        self.requests.append(f"{game_id}/{build_id}")
        if self.fault is not None:
            raise self.fault
        archive, compression, sha256 = self.source
        archive = self.archives.get(build_id, archive)
        if not archive:
            raise BuildUnusable("there is no such build")
        kind = "docker_image" if build_id in self.images else "archive"
        return BuildSource(kind, compression, sha256, _blocks(archive), len(archive))


async def _blocks(archive: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(archive), 1 << 16):
        yield archive[start : start + (1 << 16)]


def open_builds(folder: Path, store: Store, reserve_bytes: int = 0) -> UnpackedBuilds:
    builds = UnpackedBuilds(folder, store, reserve_bytes)
    builds.recover()
    return builds


def whole() -> bytes:
    """Returns an archive with every kind of entry that a build may have."""
    manifest = {"command": ["./run", "--fast"], "env": {"A": "b"}, "workdir": "bin"}
    modes = {"bin/run": 0o6755, "data/map": 0o600, "server.json": 0o666, "data/run.sh": 0o4511}
    contents = {"server.json": json.dumps(manifest).encode(), "data/map": bytes(3 << 20)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = entry("data/", tarfile.DIRTYPE)
        folder.mode = 0o2700
        archive.addfile(folder)
        for name, mode in modes.items():
            file = tarfile.TarInfo(name)
            file.mode, file.size = mode, len(contents.get(name, b"#!"))
            file.uid, file.uname = 4711, "other"
            archive.addfile(file, io.BytesIO(contents.get(name, b"#!")))
        archive.addfile(entry("bin/start", tarfile.SYMTYPE, "run"))
        archive.addfile(entry("map", tarfile.LNKTYPE, "data/map"))
    return buffer.getvalue()
