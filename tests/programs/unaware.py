"""Game server that knows nothing of the service: `python3 -S unaware.py <words>`.

It listens on `PORT_GAME` over TCP and UDP and echoes what it receives. With `later`, it does so after
it has written 2,000 lines. It answers queries of Quake 3: the number of players is in the file
`players` of its scratch folder, which a datagram `players <number>` writes. With `mute` it answers
no query, and with `flood` it answers each with many wrong datagrams. With `crash` it exits with an
error after it has begun to listen.
"""

import contextlib
import os
import selectors
import socket
import sys

STATUS = b"\xff\xff\xff\xffgetstatus"
ANSWER = b"\xff\xff\xff\xffstatusResponse\n\\sv_hostname\\unaware\n"
WORDS = sys.argv[1:]
ADDRESS = ("127.0.0.1", int(os.environ["PORT_GAME"]))


def main() -> None:
    assert "HOSTING_LOBBY_TOKEN" in os.environ
    players = 0
    if "later" in WORDS:
        for number in range(2_000):
            print(f"loading part {number}", flush=True)
    listener = socket.create_server(ADDRESS)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(ADDRESS)
    print("server: the map is loaded", flush=True)
    if "crash" in WORDS:
        sys.exit("fatal: the map has no start")
    selector = selectors.DefaultSelector()
    for one in (listener, datagrams):
        selector.register(one, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
            elif key.fileobj is datagrams:
                received, sender = datagrams.recvfrom(2048)
                if received.startswith(b"players "):
                    players = int(received.split()[1])
                reply = received
                if received.startswith(STATUS):
                    if "mute" in WORDS:
                        continue
                    for _ in range(1_000 if "flood" in WORDS else 0):
                        # The kernel refuses datagrams to the closed socket of an earlier query.
                        with contextlib.suppress(OSError):
                            datagrams.sendto(b"x" * 1_000, sender)
                    reply = ANSWER + b"".join(b'7 40 "p"\n' for _ in range(players))
                with contextlib.suppress(OSError):
                    datagrams.sendto(reply, sender)
            else:
                stream = key.fileobj
                assert isinstance(stream, socket.socket)
                piece = b""
                with contextlib.suppress(OSError):
                    piece = stream.recv(2048)
                if piece:
                    stream.sendall(piece)
                else:
                    selector.unregister(stream)
                    stream.close()


main()
