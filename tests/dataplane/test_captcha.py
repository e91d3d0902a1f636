"""Captcha checks of find and join against a provider on loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web

from pyservice.dataplane.engine import Engine
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.admission_scene import AdmissionScene, admission_scene
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import configuration, resolved_namespace, version
from tests.support.third_party_server import ThirdPartyServer, third_party_server
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

A = {"secret_key": "secret-a", "site_key": "site-a"}
B = {"secret_key": "secret-b", "site_key": "site-b"}
RULE = {"captcha_a": A, "requests_before_reverify": 2, "verification_ttl": 60_000}
EACH_REQUEST = {**RULE, "requests_before_reverify": 0}
PASSED = b'{"success": true}'
FAILED = b'{"success": false, "error-codes": ["invalid-input-response"]}'


@pytest.fixture
async def provider() -> AsyncIterator[ThirdPartyServer]:
    async with third_party_server() as server:
        server.answers(200, PASSED)
        yield server


@pytest.fixture
async def scene(engine: Engine, provider: ThirdPartyServer) -> AsyncIterator[AdmissionScene]:
    first, second = provider.url("/a"), provider.url("/b")
    async with admission_scene(engine, captcha_a=first, captcha_b=second) as scene:
        yield scene


def proof(response: str = "human", provider: str = "captcha_a") -> pb.Captcha:
    return pb.Captcha(**{provider: pb.CaptchaAnswer(client_response=response)})


def form(server: ThirdPartyServer, index: int = -1) -> dict[str, str]:
    fields = parse_qs(server.requests[index].body.decode(), strict_parsing=True)
    return {name: value for name, [value] in fields.items()}


async def test_captcha_is_required_for_find_and_join(scene: AdmissionScene) -> None:
    lobby = await scene.attach()
    scene.ask(RULE)
    for work in (scene.find(), scene.join(lobby.lobby_id)):
        error = await expect_error(work)
        assert error.code == "CAPTCHA_REQUIRED"
        assert error.metadata == {"provider": "captcha_a", "site_key": "site-a"}
    assert scene.slot_counts(lobby.lobby_id) == (0, 0, 0, 0)


async def test_valid_captcha_response_is_verified_with_a_form(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    lobby = await scene.attach()
    scene.ask(RULE)
    answer = await scene.join(lobby.lobby_id, captcha=proof("a&b=ü"))
    await scene.connected(lobby.lobby_id, answer.player.token)
    [request] = provider.requests
    assert (request.method, request.path) == ("POST", "/a")
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert request.headers["traceparent"].startswith("00-" + "0" * 32)
    expected_form = {"secret": "secret-a", "response": "a&b=ü", "remoteip": "10.0.0.1"}
    assert form(provider) == {**expected_form, "sitekey": "site-a"}


async def test_providers_of_the_rule(scene: AdmissionScene, provider: ThirdPartyServer) -> None:
    await scene.attach("tagged")
    scene.ask(RULE)
    # A response for another provider, or for none, is ignored.
    for captcha in (proof(provider="captcha_b"), pb.Captcha()):
        error = await expect_error(scene.find("tagged", captcha=captcha))
        assert (error.code, error.metadata["provider"]) == ("CAPTCHA_REQUIRED", "captcha_a")
    assert provider.requests == []
    scene.ask({**RULE, "captcha_b": B})
    error = await expect_error(scene.find("tagged"))
    assert error.metadata["provider"] == "captcha_a"
    await scene.find("tagged", captcha=proof(provider="captcha_b"))
    await scene.find("tagged", scene.client(2), captcha=proof())
    assert [request.path for request in provider.requests] == ["/b", "/a"]
    assert form(provider, 0) == {"secret": "secret-b", "response": "human", "remoteip": "10.0.0.1"}
    scene.ask({**RULE, "captcha_a": None, "captcha_b": B})
    error = await expect_error(scene.find("tagged", scene.client(3)))
    assert error.metadata == {"provider": "captcha_b", "site_key": "site-b"}


async def test_pass_expires_after_requests(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    lobby = await scene.attach("tagged")
    scene.ask(RULE)
    for _ in range(2):
        await scene.find("tagged", captcha=proof())
        # A valid pass needs no response, and the service does not verify an unneeded one.
        await scene.find("tagged", captcha=proof("another"))
        await scene.join(lobby.lobby_id)
        for work in (scene.find("tagged"), scene.join(lobby.lobby_id)):
            assert (await expect_error(work)).code == "CAPTCHA_REQUIRED"
    assert len(provider.requests) == 2
    scene.ask(EACH_REQUEST)
    for _ in range(2):
        assert (await expect_error(scene.find("tagged"))).code == "CAPTCHA_REQUIRED"
        await scene.find("tagged", captcha=proof())
    assert len(provider.requests) == 4


async def test_pass_expires_after_ttl_and_belongs_to_an_address(
    scene: AdmissionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.attach("tagged")
    scene.ask(RULE)
    await scene.find("tagged", captcha=proof())
    error = await expect_error(scene.find("tagged", scene.client(2)))
    assert error.code == "CAPTCHA_REQUIRED"
    records = scene.engine.player_records
    monkeypatch.setattr(records, "last_pass", lambda *_: (59_999, 0))
    await scene.find("tagged")
    monkeypatch.setattr(records, "last_pass", lambda *_: (60_000, 0))
    assert (await expect_error(scene.find("tagged"))).code == "CAPTCHA_REQUIRED"


async def test_env_caller_passes_for_the_named_player(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    await scene.attach("tagged")
    scene.ask(RULE)
    back_end = scene.back_end()
    error = await expect_error(scene.find("tagged", back_end, client_address="2001:db8::7"))
    assert error.code == "CAPTCHA_REQUIRED"
    await scene.find("tagged", back_end, client_address="2001:db8::7", captcha=proof())
    assert form(provider)["remoteip"] == "2001:db8::7"
    # Addresses are counted by /64.
    await scene.find("tagged", back_end, client_address="2001:db8::8")
    await scene.find("tagged", back_end)


UNUSABLE = (b"", b"true", b"[]", b'{"success": true', b"<html>")


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        *(
            (200, body, "CAPTCHA_FAILED")
            for body in (FAILED, b"{}", b'{"success": "true"}', b'{"success": 1}')
        ),
        (200, b'{"success": null}', "CAPTCHA_FAILED"),
        *((200, body, "MATCHMAKER_VERIFICATION_UNAVAILABLE") for body in UNUSABLE),
        (
            200,
            b'{"success": true, "more": "' + b"x" * 70_000 + b'"}',
            "MATCHMAKER_VERIFICATION_UNAVAILABLE",
        ),
        *(
            (status, PASSED, "MATCHMAKER_VERIFICATION_UNAVAILABLE")
            for status in (302, 400, 404, 500, 503)
        ),
    ],
)
async def test_other_response_of_the_provider_stores_nothing(
    scene: AdmissionScene, provider: ThirdPartyServer, status: int, body: bytes, code: str
) -> None:
    lobby = await scene.attach()
    scene.ask(RULE)
    provider.answers(status, body)
    error = await expect_error(scene.find(captcha=proof()))
    assert error.code == code
    assert ("captcha provider" in error.detail) == (code == "MATCHMAKER_VERIFICATION_UNAVAILABLE")
    client = scene.client()
    last_pass = scene.engine.player_records.last_pass(client.namespace_id, client.call.address)
    assert last_pass == (None, 0)
    assert scene.slot_counts(lobby.lobby_id) == (0, 0, 0, 0)


@pytest.mark.parametrize("endpoints", [{"captcha_a": "http://127.0.0.1:1/"}, {}])
async def test_unreachable_provider_is_unavailable(
    engine: Engine, endpoints: dict[str, str]
) -> None:
    async with admission_scene(engine, 5_000, **endpoints) as scene:
        await scene.attach()
        scene.ask(RULE)
        error = await expect_error(scene.find(captcha=proof()))
        assert error.code == "MATCHMAKER_VERIFICATION_UNAVAILABLE"


async def test_concurrent_repeated_requests_share_one_captcha(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    lobby = await scene.attach("tagged")
    scene.ask(EACH_REQUEST)
    go = asyncio.Event()

    async def once(_: web.Request) -> web.StreamResponse:
        await go.wait()
        return web.Response(body=PASSED if len(provider.requests) == 1 else FAILED)

    provider.reply = once

    def ask() -> asyncio.Task[Any]:
        caller = scene.client(idempotency_key="twice")
        return asyncio.create_task(scene.join(lobby.lobby_id, caller, captcha=proof()))

    first, second = ask(), ask()
    await asyncio.wait_for(provider.arrived.wait(), PATIENCE_S)
    first.cancel()
    third = ask()
    await asyncio.sleep(0)
    go.set()
    answers = await asyncio.gather(second, third)
    assert answers[0] == answers[1]
    assert first.cancelled() or first.cancelling()
    assert scene.slot_counts(lobby.lobby_id) == (0, 1, 0, 0)
    assert len(provider.requests) == 1


async def test_rejoin_requires_captcha(scene: AdmissionScene) -> None:
    lobby = await scene.attach()
    token = (await scene.join(lobby.lobby_id)).player.token
    await scene.connected(lobby.lobby_id, token)
    await scene.disconnected(lobby.lobby_id, token, hold_ms=60_000)
    scene.ask(RULE)
    error = await expect_error(scene.join(lobby.lobby_id, rejoin_token=token))
    assert error.code == "CAPTCHA_REQUIRED"
    assert scene.slot_counts(lobby.lobby_id) == (0, 0, 0, 1)
    await scene.join(lobby.lobby_id, rejoin_token=token, captcha=proof())
    assert scene.slot_counts(lobby.lobby_id) == (0, 1, 0, 0)


async def test_bundled_captcha_provider(engine: Engine) -> None:
    command = [sys.executable, "-m", "examples.captcha_provider", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = (await asyncio.to_thread(process.stdout.readline)).strip()
            async with admission_scene(engine, captcha_a=url, captcha_b=url) as scene:
                await scene.attach("tagged")
                scene.ask({**EACH_REQUEST, "captcha_b": B})
                for name in ("captcha_a", "captcha_b"):
                    await scene.find("tagged", captcha=proof(provider=name))
                await scene.find("tagged", captcha=proof("human-1"))
                for response in ("robot", "human-1"):
                    error = await expect_error(scene.find("tagged", captcha=proof(response)))
                    assert error.code == "CAPTCHA_FAILED"
        finally:
            process.terminate()


def test_captcha_rule_repr_hides_secrets() -> None:
    verification = {"url": "https://x/?key=s3", "headers": {"k": "s3"}}
    duel = {"actions": {"join": {"enabled": True, "verification": verification}}}
    message = configuration(versions=[version(level={"captcha": RULE}, duel=duel)])
    resolved = resolved_namespace(message)
    assert resolved.admission_rules is not None
    assert "secret-a" not in repr(resolved)
    assert "s3" not in repr(resolved)
