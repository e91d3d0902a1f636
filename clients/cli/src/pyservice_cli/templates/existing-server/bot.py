"""Bot: finds a lobby, connects, and says something each second. It sends no player token."""

import asyncio
import os

from hosting_game import HostingError, Matchmaker


async def main():
    matchmaker = Matchmaker(os.environ["HOSTING_API_URL"], os.environ["HOSTING_PUBLIC_TOKEN"])
    reservation = await matchmaker.find("hall")
    print("plays in lobby", reservation.lobby_id, flush=True)
    port = reservation.port()
    reader, writer = await asyncio.open_connection(port.hostname, port.port)
    while True:
        writer.write(b"hello\n")
        if not await reader.readline():
            raise SystemExit("the server has closed the connection")
        await asyncio.sleep(1)


try:
    asyncio.run(main())
except HostingError as error:
    raise SystemExit(f"No lobby: {error}") from None
