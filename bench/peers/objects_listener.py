"""The listener of signed URLs alone over a folder: says where it is, and completes and digests an
object at a word of its standard input. For the bench of uploads.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path

import uvloop

from pyservice.cdn.app import Cdn
from pyservice.cdn.receiving import Uploads
from pyservice.cdn.server import CdnServer
from pyservice.cdn.sites import Site
from pyservice.storage.local_objects import Folder
from pyservice.storage.objects import Objects, Part, Prepared
from pyservice.storage.signatures import UrlSigner


class _NoSites:
    async def find(self, game: str, namespace: str) -> Site | None:
        return None


async def serve(folder: Path, length: int) -> None:
    """A line in: the key of an upload. Two lines out: where to put it; after the next, its digest."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    signer = UrlSigner([bytes(32)])
    blobs = Folder(folder, signer, url, reserve_bytes=0)
    objects = Objects(blobs, signer, url)
    uploads = Uploads(blobs, signer, objects.counts)
    server = CdnServer(Cdn(_NoSites(), objects, signer, None), listener, uploads)
    await server.start()
    while key := (await asyncio.to_thread(sys.stdin.readline)).strip():
        print(json.dumps(await objects.presign_put(key, length, 3600)), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await objects.complete([Prepared(key, [Part(0, length)])])
        print(json.dumps(await objects.digest(key, asyncio.to_thread)), flush=True)
        await objects.delete(key)


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
