"""Captcha and verification in a running service: responses for players, rejected configurations,
and cancelled requests.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from examples.captcha_provider import Provider
from pyservice.pb.hosting.v1 import matchmaker_pb2, matchmaker_pb2_grpc
from tests.support.data_plane_service import MODES, MakeService, Service, version
from tests.support.verification_server import LOOPBACK, Game, running_game, verified_modes
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full

_HANGING = 20
_JOIN = "/matchmaker/lobbies/join"
_FILES = 8_000
"""Open files of a service that passes one request on for each 25 of them."""
_PRESENT = _FILES // 25 // 8
PASSES_S = 1.5
"""Time in which the request reaches the game's verification server, which does not respond."""
RULE = {
    "captcha_a": {"secret_key": "never-shown", "site_key": "site-a"},
    "requests_before_reverify": 1,
    "verification_ttl": 60_000,
}


@pytest.fixture
def game() -> Iterator[Game]:
    with running_game() as game:
        yield game


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, daemon=True)
        thread.start()
        yield provider
        provider.shutdown()
        thread.join()


def _join(service: Service, token: str, lobby: str, **fields: Any) -> httpx.Response:
    body = {"lobby_id": lobby, **fields}
    return service.ask("POST", "/matchmaker/lobbies/join", body, token, user_agent="Game/2")


def test_verification_server_rejects_a_join(make_service: MakeService, game: Game) -> None:
    service = make_service(modes=verified_modes(game.url), settings=LOOPBACK).start()
    lobby, _ = service.attach()
    token = service.public_token()
    answer = _join(service, token, lobby, verification_data={"ticket": 7})
    assert answer.status_code == 200, answer.text
    [body] = game.bodies
    assert body["verification_data"] == {"ticket": 7}
    assert body["client"] == {"address": "127.0.0.1", "user_agent": "Game/2"}
    assert str(game.traces[0]).startswith(f"00-{answer.headers['x-ray-id']}-")
    game.status = 403
    refusal = _join(service, token, lobby)
    assert (refusal.status_code, refusal.json()["code"]) == (403, "MATCHMAKER_VERIFICATION_FAILED")
    game.status = 302
    refusal = service.find(token)
    assert refusal.status_code == 502
    assert refusal.json()["code"] == "MATCHMAKER_VERIFICATION_UNAVAILABLE"
    assert "status 302" in service.log()
    assert "never-shown" not in service.log()


def test_grpc_find_is_verified_within_its_deadline(make_service: MakeService, game: Game) -> None:
    service = make_service(modes=verified_modes(game.url), settings=LOOPBACK).start()
    lobby, _ = service.attach()
    metadata = [("authorization", f"Bearer {service.public_token()}")]
    with grpc.insecure_channel(service.addresses["grpc"]) as channel:
        stub: Any = matchmaker_pb2_grpc.MatchmakerStub(channel)  # type: ignore[no-untyped-call]
        request = matchmaker_pb2.JoinLobbyRequest(lobby_id=lobby)
        assert stub.JoinLobby(request, metadata=metadata, timeout=PATIENCE_S).player.token
        game.status = 400
        with pytest.raises(grpc.RpcError) as caught:
            stub.JoinLobby(request, metadata=metadata, timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        game.go.clear()
        with pytest.raises(grpc.RpcError) as caught:
            stub.JoinLobby(request, metadata=metadata, timeout=PASSES_S)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert game.disconnected.wait(PATIENCE_S)


def test_verification_that_hangs_delays_only_its_own_requests(
    make_service: MakeService, game: Game
) -> None:
    service = make_service(modes=verified_modes(game.url), settings=LOOPBACK).start()
    verified, _ = service.attach()
    _, lobby_token = service.attach("party")
    token = service.public_token()
    game.go.clear()
    with contextlib.ExitStack() as waiting:
        for _ in range(_HANGING):
            waiting.enter_context(sent(service, _JOIN, token, verified))
        until(lambda: len(game.bodies) == _HANGING)
        found = service.find(token, "party").json()
        connected = service.connected(lobby_token, found["player"]["token"])
        assert connected.status_code == 200, connected.text
        # Python answers this request, as it does those that wait.
        assert service.attach("party") is not None
        assert not game.disconnected.is_set()


def test_group_waits_with_an_eighth_of_the_passed_requests(
    make_service: MakeService, game: Game
) -> None:
    service = make_service(modes=verified_modes(game.url), settings=LOOPBACK)
    service.command_prefix = ("prlimit", f"--nofile={_FILES}")
    verified, _ = service.start().attach()
    token = service.public_token()
    game.go.clear()
    with contextlib.ExitStack() as waiting:
        for number in range(_PRESENT):
            # One address has a part of the passed requests.
            join = sent(service, _JOIN, token, verified, f"127.{number % 4}.0.1")
            waiting.enter_context(join)
        until(lambda: len(game.bodies) == _PRESENT)
        refusal = _join(service, token, verified)
    assert refusal.json()["code"] == "MATCHMAKER_VERIFICATION_UNAVAILABLE"


@contextlib.contextmanager
def sent(
    service: Service, path: str, token: str, lobby_id: str, client: str = "127.0.0.1"
) -> Iterator[None]:
    """Sends a request of a browser, and does not wait for the response."""
    host, _, port = service.addresses["http"].rpartition(":")
    body = json.dumps({"lobby_id": lobby_id})
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        f"Origin: http://example.com\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), source_address=(client, 0)) as connection:
        connection.sendall(f"{head}{body}".encode())
        yield


def test_verification_is_cancelled_when_the_client_disconnects(
    make_service: MakeService, game: Game
) -> None:
    service = make_service(modes=verified_modes(game.url), settings=LOOPBACK).start()
    lobby, _ = service.attach()
    token = service.public_token()
    game.go.clear()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"http://{service.addresses['http']}/matchmaker/lobbies/join",
            json={"lobby_id": lobby},
            headers={"Authorization": f"Bearer {token}"},
            timeout=PASSES_S,
        )
    assert game.disconnected.wait(PATIENCE_S)
    game.go.set()
    assert _join(service, token, lobby).status_code == 200


def test_feed_with_a_private_verification_address_is_rejected(
    make_service: MakeService, game: Game
) -> None:
    service = make_service()
    service.start()
    service.feed |= {"revision": 2, "versions": [version(**verified_modes(game.url))]}
    service.write_feed()
    checked = service.command("check-config", "--feed", str(service.feed_file))
    assert checked.returncode == 1
    assert "verification_allowed_networks" in checked.stderr
    assert game.bodies == []


def test_solved_captcha_is_valid_after_a_restart(
    make_service: MakeService, provider: Provider
) -> None:
    modes: dict[str, Any] = {**MODES}
    versions = [version(level={"captcha": RULE}, **modes)]
    service = make_service(versions=versions, settings={"captcha": {"captcha_a_url": provider.url}})
    service.start()
    lobby, _ = service.attach("party")
    token = service.public_token()
    refusal = _join(service, token, lobby)
    assert (refusal.status_code, refusal.json()["code"]) == (403, "CAPTCHA_REQUIRED")
    assert refusal.json()["metadata"] == {"provider": "captcha_a", "site_key": "site-a"}
    refusal = _join(service, token, lobby, captcha={"captcha_a": {"client_response": "robot"}})
    assert (refusal.status_code, refusal.json()["code"]) == (403, "CAPTCHA_FAILED")
    passed = _join(service, token, lobby, captcha={"captcha_a": {"client_response": "human"}})
    assert passed.status_code == 200, passed.text
    service.kill()
    service.start()
    assert _join(service, token, lobby).status_code == 200
    assert _join(service, token, lobby).json()["code"] == "CAPTCHA_REQUIRED"
    assert "never-shown" not in service.log()


def test_feed_with_a_captcha_without_endpoint_is_rejected(make_service: MakeService) -> None:
    modes: dict[str, Any] = {**MODES}
    service = make_service(versions=[version(level={"captcha": RULE}, **modes)])
    checked = service.command("check-config", "--feed", str(service.feed_file))
    assert checked.returncode == 1
    assert "captcha.captcha_a_url" in checked.stderr
