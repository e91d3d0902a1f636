"""The arena's client of the hosting service during outages. `tests/e2e` tests it with a real
service.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from examples.arena.hosting import Connections, HostingClient, Pauses, ServiceAway
from examples.arena.lobby import RELEASES_MAX, Lobby, Releases
from examples.arena.settings import SettingsError, read_settings
from tests.support.waiting import PATIENCE_S, within

pytestmark = pytest.mark.anyio


@pytest.fixture
def refused_url() -> Iterator[str]:
    """Address without a listener. The socket stays bound, so no other program can take the port."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


@pytest.fixture
def silent_url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[HostingClient]:
    hosting = HostingClient(url, "lobby_secret")
    try:
        yield hosting
    finally:
        hosting.close()


async def test_refused_connection_counts_as_an_outage(refused_url: str) -> None:
    async with client_of(refused_url) as hosting:
        for count in (1, 2):
            with pytest.raises(ServiceAway):
                await hosting.call("POST", "/matchmaker/lobbies/ready", b"{}")
            assert hosting.outages == count


@pytest.mark.timing
async def test_silent_service_is_an_outage_after_the_timeout(silent_url: str) -> None:
    async with client_of(silent_url) as hosting:
        with within(0.5), pytest.raises(ServiceAway):
            await hosting.call("POST", "/matchmaker/lobbies/ready", b"{}", timeout_s=0.2)
        assert hosting.outages == 1


@pytest.mark.timing
async def test_confirm_is_retried_until_its_deadline(refused_url: str) -> None:
    async with client_of(refused_url) as hosting:
        with within(0.9), pytest.raises(ServiceAway):
            await hosting.confirm_player("player_a", "key", within_s=0.6)
        assert hosting.outages >= 2


@pytest.mark.timing
async def test_confirm_times_out_on_a_silent_service(silent_url: str) -> None:
    async with client_of(silent_url) as hosting:
        with within(0.8), pytest.raises(ServiceAway):
            await hosting.confirm_player("player_a", "key", within_s=0.5)


async def test_close_cancels_a_running_call() -> None:
    has_request, is_over = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        has_request.set()
        await is_over.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        hosting = HostingClient(f"http://127.0.0.1:{port}", "lobby_secret")
        call = asyncio.create_task(hosting.call("POST", "/any", b"", timeout_s=30))
        await has_request.wait()
        hosting.close()
        with pytest.raises(ServiceAway):
            await asyncio.wait_for(call, PATIENCE_S)
        is_over.set()


async def test_outage_message_has_no_token(refused_url: str) -> None:
    async with client_of(refused_url) as hosting:
        with pytest.raises(ServiceAway) as caught:
            await hosting.confirm_player("player_very_secret", "key", within_s=0.1)
        assert "secret" not in str(caught.value)


async def test_closed_idle_connection_is_replaced() -> None:
    connections_made = 0
    answered = asyncio.Event()

    async def answer_once_and_close(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal connections_made
        connections_made += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        answered.set()

    server = await asyncio.start_server(answer_once_and_close, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with client_of(f"http://127.0.0.1:{port}") as hosting:
            for expected in (1, 2, 3):
                answered.clear()
                assert await hosting.call("POST", "/any", b"") == {}
                assert connections_made == expected
                await answered.wait()
            assert hosting.outages == 0


async def test_open_connection_is_reused() -> None:
    connections_made = 0

    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections_made
        connections_made += 1
        while await reader.readline():
            while await reader.readline() != b"\r\n":
                pass
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer_all, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with client_of(f"http://127.0.0.1:{port}") as hosting:
            for _ in range(5):
                assert await hosting.call("POST", "/any", b"") == {}
            assert connections_made == 1


async def test_lobby_retries_during_an_outage(refused_url: str) -> None:
    async with client_of(refused_url) as hosting:
        lobby = asyncio.create_task(Lobby(hosting, list).run())
        async with asyncio.timeout(PATIENCE_S):
            while hosting.outages < 3:
                await asyncio.sleep(0.01)
        assert not lobby.done()
        lobby.cancel()


async def test_release_stays_pending_during_an_outage(refused_url: str) -> None:
    async with client_of(refused_url) as hosting:
        releases = Releases(hosting)
        running = asyncio.create_task(releases.run())
        releases.add("player_a")
        releases.add("player_b")
        async with asyncio.timeout(PATIENCE_S):
            while hosting.outages < 4:
                await asyncio.sleep(0.01)
        assert set(releases.pending) == {"player_a", "player_b"}
        running.cancel()


async def test_pending_releases_are_bounded_and_the_oldest_are_dropped(refused_url: str) -> None:
    async with client_of(refused_url) as hosting:
        releases = Releases(hosting)
        for number in range(RELEASES_MAX + 10):
            releases.add(f"player_{number}")
        assert len(releases.pending) == RELEASES_MAX
        assert "player_9" not in releases.pending
        assert "player_10" in releases.pending
        await releases.finish_first_tries()


def test_back_off_grows_to_its_maximum() -> None:
    pauses = Pauses(first_s=0.1, longest_s=1.0)
    pauses_s = [pauses.take() for _ in range(8)]
    for pause_s, ceiling_s in zip(pauses_s, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0), strict=True):
        assert ceiling_s / 2 <= pause_s <= ceiling_s


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://127.0.0.1", "http://"])
def test_address_of_the_api_must_be_http(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        Connections(url)


ENVIRONMENT = {
    "HOSTING_API_URL": "http://127.0.0.1:8080/",
    "HOSTING_LOBBY_ID": "0001-lobby",
    "HOSTING_LOBBY_TOKEN": "lobby_secret",
    "HOSTING_MAX_PLAYERS": "16",
    "PORT": "9000",
}


def test_settings_come_from_the_environment() -> None:
    settings = read_settings(ENVIRONMENT)
    assert (settings.api_url, settings.lobby_id, settings.port) == (
        "http://127.0.0.1:8080",
        "0001-lobby",
        9000,
    )
    assert "secret" not in repr(settings)


def test_named_port_and_largest_limit_are_used() -> None:
    settings = read_settings(ENVIRONMENT | {"PORT_GAME": "9001", "HOSTING_MAX_PLAYERS_PARTY": "20"})
    assert settings.port == 9001
    assert settings.max_players == 20


def test_all_environment_problems_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"PORT": "http", "HOSTING_MAX_PLAYERS": "0", "HOSTING_API_URL": "nowhere"})
    named = [problem.split()[0] for problem in caught.value.problems]
    assert named == [
        "HOSTING_API_URL",
        "HOSTING_LOBBY_ID",
        "HOSTING_LOBBY_TOKEN",
        "PORT",
        "HOSTING_MAX_PLAYERS",
    ]
