"""Requests of usual clients are answered without Python, whatever headers their libraries send."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from tests.support.data_plane_clients import PlaneHttpClient, read_response
from tests.support.front_metrics import answers_of_front
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import ApiSession
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

OPERATIONS: Final = ("find", "join", "connected", "heartbeat", "disconnected")
PAGE: Final = "https://game.example"
# Captured from each client with a request that follows the how-to guides, without host, length and credentials.
HEADERS: Final = {
    "Node fetch": {
        "connection": "keep-alive",
        "content-type": "application/json",
        "accept": "*/*",
        "accept-language": "*",
        "sec-fetch-mode": "cors",
        "user-agent": "node",
        "accept-encoding": "gzip, deflate",
    },
    "Go net/http": {
        "user-agent": "Go-http-client/1.1",
        "content-type": "application/json",
        "accept-encoding": "gzip",
    },
    "Java HttpClient": {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        "user-agent": "Java-http-client/17.0.15",
        "content-type": "application/json",
    },
    "fetch in Chromium": {
        "connection": "keep-alive",
        "sec-ch-ua-platform": '"Linux"',
        "user-agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)"
        " Chrome/156.0.0.0 Safari/537.36",
        "sec-ch-ua": '"Chromium";v="156", "Not?A_Brand";v="24"',
        "content-type": "application/json",
        "sec-ch-ua-mobile": "?0",
        "accept": "*/*",
        "origin": PAGE,
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "cors",
        "sec-fetch-dest": "empty",
        "referer": f"{PAGE}/",
        "accept-encoding": "gzip, deflate, br, zstd",
        "accept-language": "en-US,en;q=0.9",
    },
    "UnityWebRequest": {
        "user-agent": "UnityPlayer/6000.0.32f1 (UnityWebRequest/1.0, libcurl/8.10.1-DEV)",
        "accept": "*/*",
        "accept-encoding": "deflate, gzip",
        "content-type": "application/json",
        "x-unity-version": "6000.0.32f1",
    },
}


@dataclass
class GameClient:
    """Sends the requests of one player and of its lobby server, with a library or with its headers."""

    plane: Plane
    http: PlaneHttpClient
    name: str
    sent: int = 0

    async def send(self, path: str, token: str, fields: dict[str, Any]) -> Any:
        self.sent += 1
        body = json.dumps(fields).encode()
        headers = {
            "authorization": f"Bearer {token}",
            "idempotency-key": f"{quote(self.name)}-{self.sent}",
        }
        url = f"http://{self.plane.addresses['http']}{path}"
        if self.name == "urllib":
            headers["content-type"] = "application/json"
            request = urllib.request.Request(url, body, headers)
            return await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(request)))
        if self.name == "httpx":
            async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
                response = await client.post(url, headers=headers, json=fields)
            assert response.status_code == 200, response.text
            return response.json()
        if self.name == "curl":
            options = [option for header in headers.items() for option in ("-H", ": ".join(header))]
            arguments = ["-sS", "--fail-with-body", *options, "--json", body.decode(), url]
            process = await asyncio.create_subprocess_exec(
                "curl", *arguments, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await process.communicate()
            assert process.returncode == 0, output
            return json.loads(output)
        return await self._send_raw(path, headers | HEADERS[self.name], body)

    async def _send_raw(self, path: str, headers: dict[str, str], body: bytes) -> Any:
        async with self.http.connection() as (reader, writer):
            writer.write(self.http.request_bytes("POST", path, headers, body))
            response = await read_response(reader)
        assert response.status == 200, response.body
        allowed = response.headers.get("access-control-allow-origin")
        assert allowed == ("*" if "origin" in headers else None)
        return json.loads(response.body)


@pytest.fixture(scope="module")
async def session(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiSession]:
    plane = Plane(tmp_path_factory.mktemp("clients"))
    try:
        await plane.start()
        client = plane.http_client()
        yield ApiSession(plane, client, await plane.public_token())
        await client.close()
    finally:
        plane.end()


@pytest.fixture
def plane(session: ApiSession) -> Plane:
    return session.plane


@pytest.mark.parametrize("name", ["urllib", "httpx", "curl", *HEADERS])
async def test_game_loop_is_answered_by_the_front(
    plane: Plane, session: ApiSession, name: str
) -> None:
    lobby = await session.attach("large")
    before = await answers_of_front(plane, *OPERATIONS)
    client = GameClient(plane, plane.http_client(), name)
    find = {"game_modes": ["large"], "tags": {}, "prevent_auto_create_lobby": True}
    found = await client.send("/matchmaker/lobbies/find", session.client_token, find)
    joined = await client.send(
        "/matchmaker/lobbies/join", session.client_token, {"lobby_id": lobby.id}
    )
    players = [placed["player"]["token"] for placed in (found, joined)]
    for player in players:
        connected = "/matchmaker/players/connected"
        assert await client.send(connected, lobby.token, {"player_token": player}) == {}
    heartbeat = {"player_tokens": players}
    assert await client.send("/matchmaker/lobbies/heartbeat", lobby.token, heartbeat) == {}
    gone = {"player_token": players[0], "hold_ms": 1_000}
    assert await client.send("/matchmaker/players/disconnected", lobby.token, gone) == {}
    assert await answers_of_front(plane, *OPERATIONS) == before + client.sent
    await session.detach(lobby)
    await client.http.close()


async def test_repeated_request_of_each_reader_and_transport_is_the_same_request(
    plane: Plane, session: ApiSession
) -> None:
    """The key is the caller's, whichever way the request takes."""
    lobby = await session.attach("large")
    client = plane.http_client()
    rpc = plane.grpc_client()
    body = json.dumps({"lobby_id": lobby.id, "party_size": 2}).encode()
    tokens: set[str] = set()
    reserved = await plane.metric("hosting_slots", state="reserved")
    for more in ({}, {"x-tab": "a\tb"}, {"origin": PAGE}):
        headers = {
            "authorization": f"Bearer {session.client_token}",
            "idempotency-key": "one",
            **more,
        }
        answer = await client.request("POST", "/matchmaker/lobbies/join", headers, body)
        tokens.add(json.loads(answer.body)["player"]["token"])
    fields = {"lobby_id": lobby.id, "party_size": 2}
    repeated = await rpc.call("join", fields, token=session.client_token, key="one")
    tokens.add(repeated.body["player"]["token"])
    assert len(tokens) == 1
    assert await plane.metric("hosting_slots", state="reserved") == reserved + 2
    reused = await rpc.call(
        "join", fields | {"party_size": 1}, token=session.client_token, key="one"
    )
    assert reused.code == "IDEMPOTENCY_KEY_REUSED"
    await session.detach(lobby)
    await client.close()
    await rpc.close()
