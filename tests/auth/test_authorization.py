"""Callers of the data plane, by their credentials."""

from __future__ import annotations

import hashlib
import time
from base64 import b64encode

import pytest

from pyservice.auth.authorization import Authorizer
from pyservice.calls import Call, Caller, Scope, TokenKind
from pyservice.dataplane.engine import Engine
from pyservice.errors import ServiceError
from tests.support.matchmaker_scene import (
    PAGE_HOST,
    SERVICE_TOKEN,
    TOKEN_ID,
    MatchmakerScene,
    expect_error,
)
from tests.support.namespace_configurations import GAME_ID, NAMESPACE_ID

pytestmark = pytest.mark.anyio

ADDRESS = bytes([127, 0, 0, 1])


def raw(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


NAMESPACE, TOKEN = raw(NAMESPACE_ID), raw(TOKEN_ID)


@pytest.fixture
async def scene(engine: Engine) -> MatchmakerScene:
    return MatchmakerScene(engine)


def _call(token: str | None = None, origin: str | None = None) -> Call:
    header = None if token is None else f"Bearer {token}"
    return Call(ray_id="0" * 32, address=ADDRESS, authorization=header, origin=origin)


async def test_client_is_known_by_its_token_or_origin(scene: MatchmakerScene) -> None:
    development = scene.engine.development_token(NAMESPACE, TOKEN, time.time_ns() // 1_000_000 * 2)
    for call, kind, identity in (
        (_call(scene.engine.public_token(NAMESPACE, TOKEN)), TokenKind.PUBLIC, ADDRESS),
        (_call(origin=f"https://{PAGE_HOST}:8080"), TokenKind.TOKENLESS, ADDRESS),
        (_call(SERVICE_TOKEN), TokenKind.SERVICE, TOKEN),
        (_call(development), TokenKind.DEVELOPMENT, TOKEN),
    ):
        caller = scene.authorizer.caller("find", call)
        assert (caller.kind, caller.identity) == (kind, NAMESPACE + identity)
        assert (caller.namespace_id, caller.group) == (NAMESPACE, raw(GAME_ID))


async def test_lobby_server_is_known_by_its_token(scene: MatchmakerScene) -> None:
    attached = await scene.attach()
    lobby = raw(attached.lobby_id)
    caller = scene.authorizer.caller("connected", _call(attached.lobby_token))
    assert (caller.kind, caller.lobby_id, caller.identity) == (TokenKind.LOBBY, lobby, lobby)


async def test_state_reader_is_a_lobby_server_or_a_back_end(scene: MatchmakerScene) -> None:
    attached = await scene.attach()
    for token, kind in (
        (attached.lobby_token, TokenKind.LOBBY),
        (SERVICE_TOKEN, TokenKind.SERVICE),
    ):
        caller = scene.authorizer.caller("get_state", _call(token))
        assert (caller.kind, caller.namespace_id) == (kind, NAMESPACE)


REJECTED: dict[str, dict[str, tuple[str | None, ...]]] = {
    "find": {
        "TOKEN_MISSING": (None,),
        "TOKEN_INVALID": ("pub_abc", "env_abc", "dev_abc"),
        "FORBIDDEN": ("lobby_abc", "cloud_abc", "player_abc", "link_abc"),
    },
    "connected": {
        "TOKEN_MISSING": (None,),
        "TOKEN_INVALID": ("lobby_abc", "dev_abc"),
        "FORBIDDEN": (SERVICE_TOKEN, "pub_abc", "cloud_abc"),
    },
    "attach": {
        "TOKEN_MISSING": (None,),
        "TOKEN_INVALID": ("env_abc",),
        "FORBIDDEN": ("pub_abc", "lobby_abc", "dev_abc"),
    },
    "get_state": {
        "TOKEN_MISSING": (None,),
        "TOKEN_INVALID": ("lobby_abc", "env_abc"),
        "FORBIDDEN": ("pub_abc", "dev_abc"),
    },
}


@pytest.mark.parametrize("operation", REJECTED)
async def test_operations_reject_other_tokens(scene: MatchmakerScene, operation: str) -> None:
    for code, tokens in REJECTED[operation].items():
        for token in tokens:
            origin = f"https://{PAGE_HOST}" if operation != "find" else None
            with pytest.raises(ServiceError) as caught:
                scene.authorizer.authorize(operation, _call(token, origin))
            assert (token, caught.value.code) == (token, code)


async def test_origin_gives_no_access_if_it_is_disabled(scene: MatchmakerScene) -> None:
    scene.feed(access={"enable_domain_public_auth": False, "domains": [PAGE_HOST]})
    with pytest.raises(ServiceError) as caught:
        scene.authorizer.caller("find", _call(origin=f"https://{PAGE_HOST}"))
    assert caught.value.code == "TOKEN_MISSING"


async def test_tokens_are_valid_until_the_feed_ends_them(scene: MatchmakerScene) -> None:
    public = scene.engine.public_token(NAMESPACE, TOKEN)
    digest = b64encode(hashlib.sha256(SERVICE_TOKEN.encode()).digest()).decode()
    token = {"token_id": TOKEN_ID, "sha256": digest}
    now_ms = time.time_ns() // 1_000_000

    def codes() -> list[str]:
        found = []
        for text in (public, SERVICE_TOKEN):
            try:
                scene.authorizer.caller("find", _call(text))
                found.append("OK")
            except ServiceError as error:
                found.append(error.code)
        return found

    scene.feed(environment_tokens=[{**token, "expires_ms": str(now_ms + 600_000)}])
    assert codes() == ["OK", "OK"]
    scene.feed(environment_tokens=[{**token, "expires_ms": str(now_ms)}])
    assert codes() == ["OK", "TOKEN_EXPIRED"]
    scene.feed(environment_tokens=[token], revoked_token_ids=[TOKEN_ID])
    assert codes() == ["TOKEN_REVOKED"] * 2
    scene.namespaces.remove(NAMESPACE)
    assert codes() == ["TOKEN_INVALID"] * 2


class Cloud:
    async def scope(self, token: str) -> Scope:
        if token != "cloud_good":
            raise ServiceError("TOKEN_REVOKED")
        return Scope(TOKEN_ID, TOKEN_ID, None, None)


async def test_cloud_tokens_are_checked_by_the_control_plane(scene: MatchmakerScene) -> None:
    authorizer = Authorizer(scene.native, Cloud())
    for operation in ("attach", "get_state"):
        pending = authorizer.authorize(operation, _call("cloud_good"))
        assert not isinstance(pending, Caller)
        caller = await pending
        assert (caller.kind, caller.namespace_id) == (TokenKind.CLOUD, b"")
        assert caller.identity == TOKEN
        refusal = authorizer.authorize(operation, _call("cloud_other"))
        assert not isinstance(refusal, Caller)
        assert (await expect_error(refusal)).code == "TOKEN_REVOKED"
