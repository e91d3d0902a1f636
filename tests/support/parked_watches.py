"""Watches of many tokens over connections that stay open."""

from __future__ import annotations

import asyncio

import httpx

from tests.support.full_service import FullService, eventually
from tests.support.sample_service import HttpConnection, Response
from tests.support.waiting import PATIENCE_S


async def held_watches(full_service: FullService) -> int:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        text = (await client.get(f"http://{full_service.ready['metrics']}/metrics")).text
    (line,) = [one for one in text.splitlines() if one.startswith("hosting_watches_held ")]
    return int(float(line.split()[1]))


async def watch_all(
    full_service: FullService, target: str, bearers: list[str]
) -> list[HttpConnection]:
    host, port = full_service.ready["http"].rsplit(":", 1)
    before = await held_watches(full_service)
    watching: list[HttpConnection] = []
    for start in range(0, len(bearers), 100):
        for token in bearers[start : start + 100]:
            connection = await HttpConnection.open((host, int(port)))
            connection.say("GET", target, None, {"authorization": f"Bearer {token}"})
            watching.append(connection)

        async def are_held() -> bool:
            return await held_watches(full_service) >= before + len(watching)

        await eventually(are_held, 30)
    return watching


async def answers(watching: list[HttpConnection]) -> list[Response]:
    async with asyncio.timeout(60):
        responses = [await connection.read() for connection in watching]
    for connection in watching:
        await connection.close()
    return responses
