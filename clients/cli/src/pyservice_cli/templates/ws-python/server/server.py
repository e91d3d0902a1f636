"""Game server: players catch a star. It decides all positions and scores."""

import asyncio
import contextlib
import json
import random

from hosting_game import LobbyServer
from websockets.asyncio.server import broadcast, serve
from websockets.exceptions import ConnectionClosed

WIDTH, HEIGHT, REACH = 600, 400, 20
lobby = LobbyServer.from_environment()
players, star = {}, [300, 200]  # [x, y, score] by socket


async def play(socket, _player):
    players[socket] = [0, 0, 0]
    try:
        await move(socket, players[socket])
    finally:
        del players[socket]


async def move(socket, mine):
    with contextlib.suppress(ConnectionClosed):
        async for message in socket:  # any message except [x, y] ends the connection
            x, y = json.loads(message)
            mine[:2] = min(max(int(x), 0), WIDTH), min(max(int(y), 0), HEIGHT)
            if abs(mine[0] - star[0]) + abs(mine[1] - star[1]) < REACH:
                mine[2] += 1
                star[:] = random.randrange(WIDTH), random.randrange(HEIGHT)


async def draw():
    while True:
        broadcast(players, json.dumps({"star": star, "players": list(players.values())}))
        await asyncio.sleep(0.05)


async def main():
    async with lobby, serve(lobby.websocket(play), "127.0.0.1", lobby.port(), max_size=256):
        drawing = asyncio.create_task(draw())
        await lobby.ready()
        await lobby.stopping()
        drawing.cancel()


asyncio.run(main())
