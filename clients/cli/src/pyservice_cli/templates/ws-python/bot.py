"""Bot: finds a lobby, and moves to the star. `pyservice play --bots 4` starts four of them."""

import asyncio
import json
import os

from hosting_game import HostingError, Matchmaker
from websockets.asyncio.client import connect


async def main():
    matchmaker = Matchmaker(os.environ["HOSTING_API_URL"], os.environ["HOSTING_PUBLIC_TOKEN"])
    reservation = await matchmaker.find("catch")
    print("plays in lobby", reservation.lobby_id, flush=True)
    x, y = 0, 0
    async with connect(reservation.websocket_url()) as socket:
        async for message in socket:
            star_x, star_y = json.loads(message)["star"]
            x += max(-10, min(10, star_x - x))
            y += max(-10, min(10, star_y - y))
            await socket.send(json.dumps([x, y]))


try:
    asyncio.run(main())
except HostingError as error:
    raise SystemExit(f"No lobby: {error}") from None
