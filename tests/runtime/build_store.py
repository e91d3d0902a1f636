from __future__ import annotations

from collections.abc import AsyncIterator

from pyservice.runtime.unpacked_builds import BuildSource, BuildUnusable


class Store:
    def __init__(
        self, archive: bytes = b"", compression: str = "none", sha256: str | None = None
    ) -> None:
        self.source = (archive, compression, sha256)
        self.archives: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.fault: Exception | None = None

    async def __call__(self, game_id: str, build_id: str) -> BuildSource:
        self.asked.append(f"{game_id}/{build_id}")
        if self.fault is not None:
            raise self.fault
        archive, compression, sha256 = self.source
        archive = self.archives.get(build_id, archive)
        if not archive:
            raise BuildUnusable("there is no such build")
        return BuildSource("archive", compression, sha256, _blocks(archive), len(archive))


async def _blocks(archive: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(archive), 1 << 16):
        yield archive[start : start + (1 << 16)]
