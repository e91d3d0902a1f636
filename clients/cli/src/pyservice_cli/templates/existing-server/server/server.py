"""A game server without any call of the service: it sends each line to all players."""

import asyncio
import sys

players = set()


async def play(reader, writer):
    players.add(writer)
    try:
        async for line in reader:
            for player in players:
                player.write(line)
    except (OSError, ValueError):
        pass
    finally:
        players.discard(writer)
        writer.close()


async def main():
    server = await asyncio.start_server(play, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


asyncio.run(main())
