from __future__ import annotations

import hashlib
import random
from typing import Any

import httpx

from pyservice.cdn.sites import Site, SiteFile
from tests.support.waiting import PATIENCE_S

MODIFIED_S = 1_700_000_000.0
PAGE = b"<!doctype html><title>arena</title>" + b"<p>hello</p>" * 100
SCRIPT = b"console.log('arena');\n" * 200
BINARY = random.Random(1).randbytes(700_000)
FILES = {
    "index.html": PAGE,
    "app.js": SCRIPT,
    "tiny.js": b"1",
    "empty.txt": b"",
    "art/index.html": b"<p>art</p>",
    "art/logo.PNG": BINARY,
    "a b/ü.txt": b"umlaut",
    "build.data.br": b"packed",
    "big.json": b'{"a": [' + b"1234567, " * 200_000 + b"0]}",
}


def make_site(files: dict[str, bytes], prefix: str = "site", **more: object) -> Site:
    listed = {
        path: SiteFile(key(prefix, path), len(content), MODIFIED_S)
        for path, content in files.items()
    }
    return Site(listed, **more)  # type: ignore[arg-type]


def key(prefix: str, path: str) -> str:
    return f"{prefix}/{hashlib.sha256(path.encode()).hexdigest()[:40]}"


class Browser(httpx.AsyncClient):
    def __init__(self, **more: Any) -> None:
        super().__init__(timeout=PATIENCE_S, **more)

    async def request(self, method: str, url: httpx.URL | str, **more: Any) -> httpx.Response:
        path = url if str(url).startswith("/") else f"/arena/prod/{url}"
        return await super().request(method, path, **more)
