"""CDN listener over a folder, with sites that a test defines.

As a program, it listens in a process of its own. Its arguments are the folder and the bytes of
free space to reserve, and its first output line is its URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from pyservice.cdn.app import Cdn
from pyservice.cdn.server import CdnServer
from pyservice.cdn.site_passwords import SitePasswords
from pyservice.cdn.sites import Site
from pyservice.cdn.uploads import UploadReceiver
from pyservice.observability.rays import Rays
from pyservice.storage.local_objects import FolderBlobStore
from pyservice.storage.objects import Objects
from pyservice.storage.signed_urls import UrlSigner

KEY = b"k" * 32


@dataclass
class MemorySites:
    by_name: dict[tuple[str, str], Site] = field(default_factory=dict)
    cache_bytes: int = 0

    async def find(self, game: str, namespace: str) -> Site | None:
        return self.by_name.get((game, namespace))


@dataclass
class Listener:
    url: str
    folder: Path
    blobs: FolderBlobStore
    objects: Objects
    signer: UrlSigner
    uploads: UploadReceiver
    sites: MemorySites
    cdn: Cdn
    server: CdnServer
    rays: Rays

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def left_behind(self) -> list[str]:
        return [path.name for path in (self.folder / "incoming").iterdir()]


@contextlib.asynccontextmanager
async def running_listener(
    folder: Path,
    domain: str | None = None,
    reserve_bytes: int = 0,
    trusted_proxies: tuple[str, ...] = (),
    credentials: SitePasswords | None = None,
) -> AsyncIterator[Listener]:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    bound.listen(512)
    bound.setblocking(False)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    signer = UrlSigner(KEY)
    blobs = FolderBlobStore(folder, signer, url, reserve_bytes)
    objects = Objects(blobs, signer, url)
    rays = Rays("cdn", per_second=10_000)
    uploads = UploadReceiver(blobs, signer, objects.counts, domain, rays)
    sites = MemorySites()
    cdn = Cdn(sites, objects, domain, trusted_proxies, credentials, rays)
    server = CdnServer(cdn, [bound], uploads, trusted_proxies)
    await server.start()
    try:
        yield Listener(url, folder, blobs, objects, signer, uploads, sites, cdn, server, rays)
    finally:
        await server.stop(grace_s=1.0)
        await asyncio.to_thread(cdn.close)
        await asyncio.to_thread(blobs.close)


async def _serve(folder: Path, reserve_bytes: int = 0) -> None:
    async with running_listener(folder, reserve_bytes=reserve_bytes) as listener:
        print(listener.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), *map(int, sys.argv[2:])))
