"""Sockets and pages of the arena server without a hosting service. `tests/e2e` tests players with a
real service.
"""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from examples.arena.hosting import HostingClient
from examples.arena.messages import MESSAGE_BYTES_MAX, End
from examples.arena.pages import Pages
from examples.arena.server import open_listener
from examples.arena.settings import Settings
from examples.arena.sockets import Arena
from tests.support.waiting import PATIENCE_S, within

pytestmark = pytest.mark.anyio

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "examples" / "arena" / "page"
WAITING_MAX = 3


@pytest.fixture
def refused_port() -> Iterator[int]:
    """Port without a listener. The socket stays bound, so no other program can take the port."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@dataclass
class Running:
    port: int

    def connect(self, query: str = "") -> connect:
        return connect(
            f"ws://127.0.0.1:{self.port}/play{query}", proxy=None, compression=None, max_queue=None
        )


@pytest.fixture
async def arena(refused_port: int) -> AsyncIterator[Running]:
    async with running_arena(refused_port) as running:
        yield running


@asynccontextmanager
async def running_arena(api_port: int) -> AsyncIterator[Running]:
    settings = Settings(
        api_url=f"http://127.0.0.1:{api_port}",
        lobby_id="lobby-1",
        lobby_token="lobby_secret",
        port=0,
        max_players=WAITING_MAX,
    )
    listener = open_listener("127.0.0.1", 0)
    hosting = HostingClient(settings.api_url, settings.lobby_token)
    stop = asyncio.Event()
    serving = asyncio.create_task(Arena(settings, hosting, seed=1).run(stop, listener, Pages(PAGE)))
    try:
        yield Running(listener.getsockname()[1])
    finally:
        stop.set()
        assert await serving is None
        hosting.close()


async def read_to_the_end(connection: ClientConnection) -> None:
    while True:
        await connection.recv()


async def end_of(connection: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        await asyncio.wait_for(read_to_the_end(connection), PATIENCE_S)
    assert closed.value.rcvd is not None, "the server gave no close code"
    return closed.value.rcvd.code


@pytest.mark.parametrize("query", ["", "?token=", "?other=1", "?token=player_a&token=player_b"])
async def test_socket_without_one_token_is_closed_at_once(arena: Running, query: str) -> None:
    async with arena.connect(query) as connection:
        assert await end_of(connection) == End.TOKEN_MISSING.code


@pytest.mark.parametrize("token", ["x" * 161, "%C3%A4", "player_%0Aa"])
async def test_malformed_token_causes_no_request(arena: Running, token: str) -> None:
    async with arena.connect(f"?token={token}") as connection:
        assert await end_of(connection) == End.TOKEN_INVALID.code


async def test_second_socket_with_the_same_token_is_closed(arena: Running) -> None:
    async with (
        arena.connect("?token=player_a") as first,
        arena.connect("?token=player_a") as second,
    ):
        assert await end_of(second) == End.TOKEN_IN_USE.code
        assert await (await first.ping()) >= 0


async def test_message_before_the_welcome_closes_the_socket(arena: Running) -> None:
    async with arena.connect("?token=player_a") as connection:
        await connection.send('{"seq":1,"dirs":1}')
        assert await end_of(connection) == End.TOO_EARLY.code


async def test_possibly_consumed_token_is_refused_until_released(arena: Running) -> None:
    async with arena.connect("?token=player_a") as connection:
        await connection.send("too early")
        assert await end_of(connection) == End.TOO_EARLY.code
    async with arena.connect("?token=player_a") as connection:
        assert await end_of(connection) == End.TOKEN_IN_USE.code


@pytest.mark.timing
async def test_unconfirmed_player_is_closed_within_ten_seconds(arena: Running) -> None:
    with within(10):
        async with arena.connect("?token=player_a") as connection:
            assert await end_of(connection) == End.UNCONFIRMED.code


async def test_waiting_sockets_are_limited_to_the_slot_count(arena: Running) -> None:
    waiting_requests = [
        await arena.connect(f"?token=player_{number}") for number in range(WAITING_MAX)
    ]
    # A pong proves that the handshake is complete. Slots are taken in the order of the handshakes.
    for connection in waiting_requests:
        await (await connection.ping())
    async with arena.connect("?token=player_x") as one_more:
        assert await end_of(one_more) == End.BUSY.code
    for connection in waiting_requests:
        await connection.close()


async def test_oversized_message_is_closed_with_1009(arena: Running) -> None:
    async with arena.connect("?token=player_a") as connection:
        await connection.send("x" * (MESSAGE_BYTES_MAX + 1))
        assert await end_of(connection) == 1009


async def test_oversized_message_in_fragments_is_closed_with_1009(arena: Running) -> None:
    async with arena.connect("?token=player_a") as connection:
        await connection.send(["x" * 100] * 3)
        assert await end_of(connection) == 1009


async def test_flood_of_pings_is_closed(arena: Running) -> None:
    async with arena.connect("?token=player_a") as connection:
        ending = asyncio.create_task(end_of(connection))
        try:
            while not ending.done():
                await connection.ping(os.urandom(100))
                await asyncio.sleep(0)
        except ConnectionClosed:
            pass
        assert await ending == End.TOO_MANY_MESSAGES.code


async def test_stop_closes_all_sockets_with_1001(refused_port: int) -> None:
    async with running_arena(refused_port) as running:
        connection = await running.connect("?token=player_a")
    assert await end_of(connection) == End.SERVER_STOPPING.code


@dataclass
class Page:
    status: int
    headers: dict[str, str]
    body: bytes


async def get(port: int, target: str, method: str = "GET") -> Page:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status_line, *header_lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in header_lines)
    return Page(int(status_line.split()[1]), headers, body)


@pytest.mark.parametrize(
    ("target", "name", "content_type"),
    [
        ("/", "index.html", "text/html"),
        ("/?x=1", "index.html", "text/html"),
        ("/arena.js", "arena.js", "text/javascript"),
        ("/view.js", "view.js", "text/javascript"),
        ("/style.css", "style.css", "text/css"),
    ],
)
async def test_page_is_served_completely(
    arena: Running, target: str, name: str, content_type: str
) -> None:
    page = await get(arena.port, target)
    assert page.status == 200
    assert page.headers["content-type"].startswith(content_type)
    assert page.body == (PAGE / name).read_bytes()


async def test_page_policy_allows_no_other_origin(arena: Running) -> None:
    policy = (await get(arena.port, "/")).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    for file in PAGE.iterdir():
        addresses = re.findall(r"https?://[^\s\"'`]+", file.read_text())
        assert [it for it in addresses if not it.startswith("http://www.w3.org/2000/svg")] == []


@pytest.mark.parametrize(
    "target", ["/index.html", "/server.py", "/../server.py", "/%2e%2e/server.py", "//", "/page/"]
)
async def test_other_paths_are_not_served(arena: Running, target: str) -> None:
    assert (await get(arena.port, target)).status == 404


@pytest.mark.parametrize("method", ["HEAD", "DELETE", "OPTIONS"])
async def test_other_methods_are_refused(arena: Running, method: str) -> None:
    page = await get(arena.port, "/", method)
    assert page.status == 405
    assert page.headers["allow"] == "get"


async def test_socket_address_without_upgrade_is_426(arena: Running) -> None:
    assert (await get(arena.port, "/play?token=player_a")).status == 426


async def test_socket_on_another_path_is_404(arena: Running) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(f"ws://127.0.0.1:{arena.port}/elsewhere?token=player_a", proxy=None)
    assert caught.value.response.status_code == 404


async def start_server(environment: dict[str, str], *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "examples.arena.server",
        *flags,
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"]} | environment,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=[int(flag) for flag in flags if flag.isdigit()],
    )


def environment_of(api_port: int) -> dict[str, str]:
    return {
        "HOSTING_API_URL": f"http://127.0.0.1:{api_port}",
        "HOSTING_LOBBY_ID": "lobby-1",
        "HOSTING_LOBBY_TOKEN": "lobby_secret",
        "PORT_GAME": "0",
    }


async def listening_port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := (await process.stderr.readline()).decode():
            if match := re.search(r"listening on http://127\.0\.0\.1:(\d+)/", line):
                return int(match[1])
    raise AssertionError("the server did not say where it listens")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_the_server_with_status_0_and_sockets_with_1001(
    refused_port: int, number: signal.Signals
) -> None:
    process = await start_server(environment_of(refused_port))
    connection = await Running(await listening_port(process)).connect("?token=player_secret")
    process.send_signal(number)
    assert await end_of(connection) == 1001
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    assert process.stderr is not None
    assert b"secret" not in await process.stderr.read()


@pytest.mark.full
async def test_idle_connection_does_not_delay_shutdown(refused_port: int) -> None:
    process = await start_server(environment_of(refused_port))
    _, writer = await asyncio.open_connection("127.0.0.1", await listening_port(process))
    process.terminate()
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    writer.close()


async def test_inherited_listener_is_used(refused_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        flags = ("--listen-fd", str(listener.fileno()))
        process = await start_server(environment_of(refused_port), *flags)
        assert await listening_port(process) == listener.getsockname()[1]
    process.terminate()
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


async def test_incomplete_environment_is_reported_and_nothing_starts() -> None:
    process = await start_server({"PORT": "x"})
    _, returned = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 1
    for name in (b"HOSTING_API_URL", b"HOSTING_LOBBY_ID", b"HOSTING_LOBBY_TOKEN", b"PORT"):
        assert name in returned
