import asyncio, json, random
from hosting_game import LobbyServer
from websockets.asyncio.server import broadcast, serve

lobby = LobbyServer.from_environment()
players, star = {}, [300, 200]  # [x, y, score] of each socket


async def play(socket, player):
    mine = players[socket] = [0, 0, 0]
    try:
        async for message in socket:  # any message except [x, y] ends the connection
            x, y = json.loads(message)
            mine[:2] = min(max(int(x), 0), 600), min(max(int(y), 0), 400)
            if abs(mine[0] - star[0]) + abs(mine[1] - star[1]) < 20:
                mine[2] += 1
                star[:] = random.randrange(600), random.randrange(400)
    finally:
        del players[socket]


async def main():
    async with lobby, serve(lobby.websocket(play), lobby.bind_address, lobby.port(), max_size=256):
        await lobby.ready()
        while not lobby.is_stopping:
            broadcast(players, json.dumps({"star": star, "players": list(players.values())}))
            await asyncio.sleep(0.05)


asyncio.run(main())
