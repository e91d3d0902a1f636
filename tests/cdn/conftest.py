"""Fixtures: a CDN listener with one site, on the event loop of production."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.cdn.example_site import FILES, Browser, key, make_site
from tests.cdn.raw_http import Connect, Wire
from tests.support.blob_stores import put_whole
from tests.support.cdn_listener import Listener, running_listener


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="module")
async def listener(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listener]:
    async with running_listener(tmp_path_factory.mktemp("cdn")) as listener:
        for path, content in FILES.items():
            await put_whole(listener.objects, key("site", path), content)
        listener.sites.by_name["arena", "prod"] = make_site(FILES)
        yield listener


@pytest.fixture
async def client(listener: Listener) -> AsyncIterator[httpx.AsyncClient]:
    async with Browser(base_url=listener.url, headers={"accept-encoding": "identity"}) as client:
        yield client


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    wires: list[Wire] = []

    async def open_wire(url: str, client: str = "127.0.0.1") -> Wire:
        wires.append(await Wire.open(url, client))
        return wires[-1]

    yield open_wire
    for wire in wires:
        await wire.close()
