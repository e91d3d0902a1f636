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

from pyservice.calls import Caller
from pyservice.dataplane.engine import Engine
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.admission_scene import AdmissionScene, admission_scene
from tests.dataplane.matchmaker_scene import expect_error
from tests.dataplane.third_party_server import ThirdPartyServer, third_party_server
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

A = {"secret_key": "secret-a", "site_key": "site-a"}
B = {"secret_key": "secret-b", "site_key": "site-b"}
RULE = {"captcha_a": A, "requests_before_reverify": 2, "verification_ttl": 60_000}
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
    fields = parse_qs(server.seen[index].body.decode(), strict_parsing=True)
    return {name: value for name, [value] in fields.items()}


async def test_captcha_is_required_for_find_and_join(scene: AdmissionScene) -> None:
    made = await scene.attach()
    scene.ask(RULE)
    for work in (scene.find(), scene.join(made.lobby_id)):
        error = await expect_error(work)
        assert error.code == "CAPTCHA_REQUIRED"
        assert error.metadata == {"provider": "captcha_a", "site_key": "site-a"}
    assert scene.places(made.lobby_id) == (0, 0, 0, 0)


async def test_valid_captcha_response_is_verified_with_a_form(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    made = await scene.attach()
    scene.ask(RULE)
    answer = await scene.join(made.lobby_id, captcha=proof("a&b=ü"))
    await scene.connected(made.lobby_id, answer.player.token)
    [seen] = provider.seen
    assert (seen.method, seen.path) == ("POST", "/a")
    assert seen.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert seen.headers["traceparent"].startswith("00-" + "0" * 32)
    assert form(provider) == {
        "secret": "secret-a",
        "response": "a&b=ü",
        "remoteip": "10.0.0.1",
        "sitekey": "site-a",
    }


async def test_captcha_error_names_the_site_key(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    await scene.attach()
    scene.ask({**RULE, "captcha_a": None, "captcha_b": B})
    error = await expect_error(scene.find())
    assert error.metadata == {"provider": "captcha_b", "site_key": "site-b"}
    await scene.find(captcha=proof(provider="captcha_b"))
    assert provider.seen[0].path == "/b"
    assert form(provider) == {"secret": "secret-b", "response": "human", "remoteip": "10.0.0.1"}


async def test_first_provider_is_preferred_and_both_are_accepted(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    await scene.attach("tagged")
    scene.ask({**RULE, "captcha_b": B})
    error = await expect_error(scene.find("tagged"))
    assert error.metadata["provider"] == "captcha_a"
    await scene.find("tagged", captcha=proof(provider="captcha_b"))
    await scene.find("tagged", scene.client(2), captcha=proof())
    assert [seen.path for seen in provider.seen] == ["/b", "/a"]


async def test_response_for_an_unconfigured_provider_is_ignored(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    await scene.attach()
    scene.ask(RULE)
    error = await expect_error(scene.find(captcha=proof(provider="captcha_b")))
    assert error.code == "CAPTCHA_REQUIRED"
    assert error.metadata["provider"] == "captcha_a"
    assert (await expect_error(scene.find(captcha=pb.Captcha()))).code == "CAPTCHA_REQUIRED"
    assert provider.seen == []


async def test_pass_expires_after_requests(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    made = await scene.attach("tagged")
    scene.ask(RULE)
    await scene.find("tagged", captcha=proof())
    await scene.find("tagged")
    await scene.join(made.lobby_id)
    assert (await expect_error(scene.find("tagged"))).code == "CAPTCHA_REQUIRED"
    await scene.find("tagged", captcha=proof())
    await scene.find("tagged")
    assert len(provider.seen) == 2


async def test_pass_expires_after_ttl(scene: AdmissionScene) -> None:
    await scene.attach("tagged")
    scene.ask(RULE)
    await scene.find("tagged", captcha=proof())
    scene.passes.now_ms = 59_999
    await scene.find("tagged")
    scene.passes.now_ms = 60_000
    assert (await expect_error(scene.find("tagged"))).code == "CAPTCHA_REQUIRED"


async def test_captcha_for_each_request_without_requests_before_reverify(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    await scene.attach("tagged")
    scene.ask({**RULE, "requests_before_reverify": 0})
    for _ in range(2):
        assert (await expect_error(scene.find("tagged"))).code == "CAPTCHA_REQUIRED"
        await scene.find("tagged", captcha=proof())
    assert len(provider.seen) == 2


async def test_unneeded_response_is_not_verified(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    await scene.attach("tagged")
    scene.ask(RULE)
    await scene.find("tagged", captcha=proof())
    await scene.find("tagged", captcha=proof("another"))
    assert len(provider.seen) == 1


async def test_captcha_pass_is_per_address(scene: AdmissionScene) -> None:
    await scene.attach("tagged")
    scene.ask(RULE)
    await scene.find("tagged", captcha=proof())
    error = await expect_error(scene.find("tagged", scene.client(2)))
    assert error.code == "CAPTCHA_REQUIRED"


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


async def test_failed_captcha_stores_nothing(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    made = await scene.attach()
    scene.ask(RULE)
    provider.answers(200, FAILED)
    for body in (FAILED, b"{}", b'{"success": "true"}', b'{"success": 1}', b'{"success": null}'):
        provider.answers(200, body)
        assert (await expect_error(scene.find(captcha=proof()))).code == "CAPTCHA_FAILED"
    assert scene.passes.passed == {}
    assert scene.places(made.lobby_id) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"true"),
        (200, b"[]"),
        (200, b'{"success": true'),
        (200, b"<html>"),
        (200, b'{"success": true, "more": "' + b"x" * 70_000 + b'"}'),
        (302, PASSED),
        (400, PASSED),
        (404, PASSED),
        (500, PASSED),
        (503, PASSED),
    ],
)
async def test_invalid_provider_response_is_unavailable(
    scene: AdmissionScene, provider: ThirdPartyServer, status: int, body: bytes
) -> None:
    made = await scene.attach()
    scene.ask(RULE)
    provider.answers(status, body)
    error = await expect_error(scene.find(captcha=proof()))
    assert error.code == "MATCHMAKER_VERIFICATION_UNAVAILABLE"
    assert "captcha provider" in error.detail
    assert scene.passes.passed == {}
    assert scene.places(made.lobby_id) == (0, 0, 0, 0)


@pytest.mark.parametrize("endpoints", [{"captcha_a": "http://127.0.0.1:1/"}, {}])
async def test_unreachable_provider_is_unavailable(
    engine: Engine, endpoints: dict[str, str]
) -> None:
    async with admission_scene(engine, 5_000, **endpoints) as scene:
        await scene.attach()
        scene.ask(RULE)
        error = await expect_error(scene.find(captcha=proof()))
        assert error.code == "MATCHMAKER_VERIFICATION_UNAVAILABLE"


async def test_repeated_request_needs_no_second_captcha(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    made = await scene.attach("tagged")
    scene.ask({**RULE, "requests_before_reverify": 0})
    caller = scene.client(idempotency_key="again")
    first = await scene.find("tagged", caller, captcha=proof())
    provider.answers(200, FAILED)
    assert await scene.find("tagged", caller, captcha=proof()) == first
    caller = scene.client(idempotency_key="join")
    provider.answers(200, PASSED)
    joined = await scene.join(made.lobby_id, caller, captcha=proof())
    provider.answers(200, FAILED)
    assert await scene.join(made.lobby_id, caller, captcha=proof()) == joined
    assert scene.places(made.lobby_id) == (0, 2, 0, 0)
    assert len(provider.seen) == 2


async def test_concurrent_repeated_requests_share_one_captcha(
    scene: AdmissionScene, provider: ThirdPartyServer
) -> None:
    made = await scene.attach("tagged")
    scene.ask({**RULE, "requests_before_reverify": 0})
    go = asyncio.Event()

    async def once(_: web.Request) -> web.StreamResponse:
        await go.wait()
        return web.Response(body=PASSED if len(provider.seen) == 1 else FAILED)

    provider.reply = once

    def ask() -> asyncio.Task[Any]:
        caller: Caller = scene.client(idempotency_key="twice")
        return asyncio.create_task(scene.join(made.lobby_id, caller, captcha=proof()))

    first, second = ask(), ask()
    await asyncio.wait_for(provider.arrived.wait(), PATIENCE_S)
    first.cancel()
    third = ask()
    await asyncio.sleep(0)
    go.set()
    answers = await asyncio.gather(second, third)
    assert answers[0] == answers[1]
    assert first.cancelled() or first.cancelling()
    assert scene.places(made.lobby_id) == (0, 1, 0, 0)
    assert len(provider.seen) == 1


async def test_captcha_error_order(scene: AdmissionScene, provider: ThirdPartyServer) -> None:
    made = await scene.attach()
    scene.ask(RULE)
    lobby = made.lobby_id
    unknown = "00010000-0000-4000-8000-000000000000"
    assert (await expect_error(scene.join(unknown))).code == "MATCHMAKER_LOBBY_NOT_FOUND"
    assert (await expect_error(scene.join(lobby, party_size=5))).code == "BODY_INVALID"
    assert (await expect_error(scene.find("brawl"))).code == "MATCHMAKER_GAME_MODE_NOT_FOUND"
    assert (await expect_error(scene.find(tags={"a": "b"}))).code == "MATCHMAKER_TAGS_DISABLED"
    assert (await expect_error(scene.find(party_size=3))).code == "BODY_INVALID"
    await scene.fleet.set_closed(pb.SetLobbyClosedRequest(is_closed=True), scene.server(lobby))
    assert (await expect_error(scene.join(lobby))).code == "MATCHMAKER_LOBBY_CLOSED"
    await scene.fleet.set_closed(pb.SetLobbyClosedRequest(is_closed=False), scene.server(lobby))
    await scene.join(lobby, captcha=proof(), party_size=2)
    # The lobby is full, but that is not reported before the captcha.
    error = await expect_error(scene.join(lobby, scene.client(2)))
    assert error.code == "CAPTCHA_REQUIRED"
    error = await expect_error(scene.join(lobby, scene.client(2), captcha=proof()))
    assert error.code == "MATCHMAKER_LOBBY_FULL"
    limited = {"matchmaker": {"lobby_count_max": 512, "max_players": 2}}
    scene.ask({**RULE, "requests_before_reverify": 0}, limited)
    assert (await expect_error(scene.join(lobby))).code == "CAPTCHA_REQUIRED"
    error = await expect_error(scene.join(lobby, captcha=proof()))
    assert error.code == "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"
    assert (await expect_error(scene.find())).code == "CAPTCHA_REQUIRED"
    error = await expect_error(scene.find(captcha=proof()))
    assert error.code == "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"
    await scene.fleet.detach(
        pb.DetachLobbyRequest(game_id="arena", lobby_id=lobby), scene.back_end()
    )
    assert (
        await expect_error(scene.join(lobby, scene.client(3)))
    ).code == "MATCHMAKER_LOBBY_STOPPED"
    assert len(provider.seen) == 4


async def test_rejoin_requires_captcha(scene: AdmissionScene) -> None:
    made = await scene.attach()
    token = (await scene.join(made.lobby_id)).player.token
    await scene.connected(made.lobby_id, token)
    await scene.disconnected(made.lobby_id, token, hold_ms=60_000)
    scene.ask(RULE)
    error = await expect_error(scene.join(made.lobby_id, rejoin_token=token))
    assert error.code == "CAPTCHA_REQUIRED"
    assert scene.places(made.lobby_id) == (0, 0, 0, 1)
    await scene.join(made.lobby_id, rejoin_token=token, captcha=proof())
    assert scene.places(made.lobby_id) == (0, 1, 0, 0)


async def test_lobby_keeps_the_captcha_of_its_version(scene: AdmissionScene) -> None:
    from tests.dataplane.configurations import version
    from tests.dataplane.matchmaker_scene import MODES

    made = await scene.attach("tagged")
    later = "0192f000-0000-7000-8000-0000000000b9"
    old, new = version(level={"captcha": RULE}, **MODES), version(later, **MODES)
    scene.feed(versions=[old, new], current_version_id=later)
    assert (await expect_error(scene.join(made.lobby_id))).code == "CAPTCHA_REQUIRED"
    fresh = await scene.attach("tagged")
    await scene.join(fresh.lobby_id)
    await scene.find("tagged")


async def test_captcha_fails_without_admission(scene: AdmissionScene, engine: Engine) -> None:
    from pyservice.dataplane.matchmaker import Matchmaker

    made = await scene.attach()
    scene.ask(RULE)
    scene.matchmaker = Matchmaker(engine, scene.namespaces, scene.matchmaker._regions)
    for work in (scene.find(captcha=proof()), scene.join(made.lobby_id, captcha=proof())):
        assert (await expect_error(work)).code == "MATCHMAKER_VERIFICATION_UNAVAILABLE"


async def test_bundled_captcha_provider(engine: Engine) -> None:
    command = [sys.executable, "-m", "examples.captcha_provider", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = (await asyncio.to_thread(process.stdout.readline)).strip()
            rule = {**RULE, "captcha_b": B, "requests_before_reverify": 0}
            async with admission_scene(engine, captcha_a=url, captcha_b=url) as scene:
                await scene.attach("tagged")
                scene.ask(rule)
                for name in ("captcha_a", "captcha_b"):
                    await scene.find("tagged", captcha=proof(provider=name))
                await scene.find("tagged", captcha=proof("human-1"))
                for response in ("robot", "human-1"):
                    error = await expect_error(scene.find("tagged", captcha=proof(response)))
                    assert error.code == "CAPTCHA_FAILED"
        finally:
            process.terminate()


def test_captcha_rule_repr_hides_secrets() -> None:
    from pyservice.dataplane.resolved_namespace import resolve_namespace
    from tests.dataplane.configurations import configuration, version

    verified = {
        "enabled": True,
        "verification": {"url": "https://x/?key=s3", "headers": {"k": "s3"}},
    }
    resolved = resolve_namespace(
        configuration(
            versions=[version(level={"captcha": RULE}, duel={"actions": {"join": verified}})]
        )
    )
    assert resolved.admission_rules is not None
    assert "secret-a" not in repr(resolved)
    assert "s3" not in repr(resolved)
