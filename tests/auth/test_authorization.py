from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pyservice.auth.authorization import Authorizer, host_of_origin
from pyservice.calls import Call, Caller, Scope, TokenKind
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.errors import ServiceError
from tests.support.namespace_configurations import NAMESPACE_ID, VERSION_ID, configuration

pytestmark = pytest.mark.anyio

NAMESPACE = bytes.fromhex(NAMESPACE_ID.replace("-", ""))
UNKNOWN = bytes(16)
ADDRESS = bytes([127, 0, 0, 1])
NOW_MS = 1_700_000_000_000

GOOD_ID = "0192f000-0000-7000-8000-0000000000c1"
REVOKED_ID = "0192f000-0000-7000-8000-0000000000c2"


def raw(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


def _service_token(token: str, token_id: str, expires_ms: int | None = None) -> dict[str, object]:
    digest = hashlib.sha256(token.encode()).digest()
    entry: dict[str, object] = {"token_id": token_id, "sha256": b64encode(digest).decode()}
    return entry if expires_ms is None else {**entry, "expires_ms": str(expires_ms)}


class Scene:
    def __init__(self, engine: Engine) -> None:
        self.namespaces = NamespaceIndex()
        self.namespaces.put(
            configuration(
                access={"domains": ["Play.example.com"], "cdn_domains": ["arena.cdn.example"]},
                revoked_token_ids=[REVOKED_ID],
                environment_tokens=[
                    _service_token("env_good", GOOD_ID),
                    _service_token("env_revoked", REVOKED_ID),
                    _service_token("env_late", GOOD_ID, NOW_MS + 1),
                    _service_token("env_ended", GOOD_ID, NOW_MS),
                ],
            )
        )
        self.engine = engine
        self.authorizer = Authorizer(engine, self.namespaces, lambda: NOW_MS)
        self.public = engine.public_token(NAMESPACE, raw(GOOD_ID))

    def lobby_token(self) -> tuple[bytes, str]:
        lobby, token, _ = self.engine._native.attach(
            NAMESPACE,
            raw(VERSION_ID),
            "duel",
            "local",
            [],
            max_players=(2, 2, 2),
            player_token_ttl_ms=5_000,
            heartbeat_timeout_ms=30_000,
            heartbeat_grace_ms=10_000,
            is_join_enabled=True,
            create_ts_ms=0,
            lobby_count_max=10,
        )
        return lobby, token


@pytest.fixture
async def scene(engine: Engine) -> Scene:
    return Scene(engine)


def _call(token: str | None = None, origin: str | None = None, scheme: str = "Bearer") -> Call:
    header = None if token is None else f"{scheme} {token}"
    return Call(ray_id="0" * 32, address=ADDRESS, authorization=header, origin=origin)


def _code(authorize: Callable[[Call], Caller | Awaitable[Caller]], call: Call) -> str:
    with pytest.raises(ServiceError) as caught:
        authorize(call)
    return caught.value.code


async def test_public_token_allows_client_operations(scene: Scene) -> None:
    caller = scene.authorizer.client(_call(scene.public))
    assert caller.kind is TokenKind.PUBLIC
    assert caller.namespace_id == NAMESPACE
    assert caller.identity == NAMESPACE + ADDRESS


async def test_service_token_allows_client_operations_and_counts_alone(scene: Scene) -> None:
    caller = scene.authorizer.client(_call("env_good"))
    assert (caller.kind, caller.namespace_id) == (TokenKind.SERVICE, NAMESPACE)
    assert caller.identity == NAMESPACE + raw(GOOD_ID)


@pytest.mark.parametrize(
    "origin",
    [
        "https://play.example.com",
        "http://play.example.com:8080",
        "https://PLAY.example.com",
        "https://play.example.com.",
        "https://arena.cdn.example",
    ],
)
async def test_origin_selects_the_namespace_without_a_token(scene: Scene, origin: str) -> None:
    caller = scene.authorizer.client(_call(origin=origin))
    assert (caller.kind, caller.namespace_id) == (TokenKind.TOKENLESS, NAMESPACE)
    assert caller.identity == NAMESPACE + ADDRESS


@pytest.mark.parametrize(
    "origin",
    [None, "", "null", "https://example.com", "play.example.com", "ftp://play.example.com",
     "https://evil.example/?play.example.com", "https://xplay.example.com", "https://[", "https://"],
)  # fmt: skip
async def test_origin_without_a_domain_is_no_token(scene: Scene, origin: str | None) -> None:
    assert _code(scene.authorizer.client, _call(origin=origin)) == "TOKEN_MISSING"


async def test_tokenless_access_can_be_disabled(scene: Scene) -> None:
    scene.namespaces.put(
        configuration(access={"enable_domain_public_auth": False, "domains": ["play.example.com"]})
    )
    call = _call(origin="https://play.example.com")
    assert _code(scene.authorizer.client, call) == "TOKEN_MISSING"


async def test_invalid_token_is_rejected_despite_a_valid_origin(scene: Scene) -> None:
    call = _call("pub_nonsense", origin="https://play.example.com")
    assert _code(scene.authorizer.client, call) == "TOKEN_INVALID"


async def test_forged_tokens_are_invalid(scene: Scene) -> None:
    last = "A" if scene.public[-2] != "A" else "B"
    for token in (
        scene.public[:-2] + last + scene.public[-1],
        scene.public + "A",
        scene.public[:-4],
        scene.engine.public_token(UNKNOWN, raw(GOOD_ID)),
        "env_unknown",
    ):
        assert _code(scene.authorizer.client, _call(token)) == "TOKEN_INVALID"


async def test_revoked_and_expired_tokens_have_their_own_errors(scene: Scene) -> None:
    revoked = scene.engine.public_token(NAMESPACE, raw(REVOKED_ID))
    assert _code(scene.authorizer.client, _call(revoked)) == "TOKEN_REVOKED"
    assert _code(scene.authorizer.client, _call("env_revoked")) == "TOKEN_REVOKED"
    assert _code(scene.authorizer.operator, _call("env_ended")) == "TOKEN_EXPIRED"
    caller = scene.authorizer.operator(_call("env_late"))
    assert isinstance(caller, Caller)
    assert caller.namespace_id == NAMESPACE


MALFORMED = ("", "nonsense", "token_abc", "env_", "env_a b", "env_a+b", "ENV_good", "dev_abc")
REJECTED: dict[str, dict[str, tuple[str | None, ...]]] = {
    "client": {
        "TOKEN_INVALID": (*MALFORMED, "env_" + "a" * 157),
        "FORBIDDEN": ("lobby_abc", "cloud_abc", "player_abc", "link_abc"),
    },
    "lobby": {
        "TOKEN_MISSING": (None,),
        "TOKEN_INVALID": ("lobby_abc", "dev_abc"),
        "FORBIDDEN": ("env_good", "pub_abc", "cloud_abc"),
    },
    "operator": {
        "TOKEN_MISSING": (None,),
        "CONTROL_PLANE_UNAVAILABLE": ("cloud_abc",),
        "FORBIDDEN": ("pub_abc", "lobby_abc", "dev_abc"),
    },
    "lobby_state": {
        "TOKEN_INVALID": ("lobby_abc",),
        "CONTROL_PLANE_UNAVAILABLE": ("cloud_abc",),
        "FORBIDDEN": ("pub_abc",),
    },
}


@pytest.mark.parametrize("operations", REJECTED)
async def test_operations_reject_other_tokens(scene: Scene, operations: str) -> None:
    authorize = getattr(scene.authorizer, operations)
    rows = [(token, code) for code, tokens in REJECTED[operations].items() for token in tokens]
    assert [(token, _code(authorize, _call(token))) for token, _ in rows] == rows


async def test_bearer_scheme_is_case_insensitive(scene: Scene) -> None:
    assert scene.authorizer.client(_call("env_good", scheme="bearer")).namespace_id == NAMESPACE
    assert _code(scene.authorizer.client, _call("env_good", scheme="Basic")) == "TOKEN_INVALID"


async def test_lobby_token_allows_lobby_operations(scene: Scene) -> None:
    lobby, token = scene.lobby_token()
    for scheme in ("Bearer", "bearer", "BEARER"):
        caller = scene.authorizer.lobby(_call(token, scheme=scheme))
        assert (caller.kind, caller.lobby_id, caller.identity) == (TokenKind.LOBBY, lobby, lobby)


async def test_origin_allows_only_client_operations(scene: Scene) -> None:
    call = _call(origin="https://play.example.com")
    for authorize in (
        scene.authorizer.lobby,
        scene.authorizer.operator,
        scene.authorizer.lobby_state,
    ):
        assert _code(authorize, replace(call)) == "TOKEN_MISSING"


async def test_lobby_state_is_readable_by_lobbies_and_back_ends(scene: Scene) -> None:
    _, token = scene.lobby_token()
    for token_text in (token, "env_good"):
        caller = scene.authorizer.lobby_state(_call(token_text))
        assert isinstance(caller, Caller)
        assert caller.namespace_id == NAMESPACE


class Cloud:
    async def scope(self, token: str) -> Scope:
        if token != "cloud_good":
            raise ServiceError("TOKEN_REVOKED")
        return Scope(GOOD_ID, GOOD_ID, None, None)


async def test_cloud_tokens_are_checked_by_the_control_plane(engine: Engine) -> None:
    authorizer = Authorizer(engine, NamespaceIndex(), cloud=Cloud())
    for authorize in (authorizer.operator, authorizer.lobby_state):
        pending = authorize(_call("cloud_good"))
        assert not isinstance(pending, Caller)
        caller = await pending
        assert (caller.kind, caller.namespace_id) == (TokenKind.CLOUD, b"")
        assert caller.identity == raw(GOOD_ID)
        refusal = authorize(_call("cloud_other"))
        assert not isinstance(refusal, Caller)
        with pytest.raises(ServiceError) as caught:
            await refusal
        assert caught.value.code == "TOKEN_REVOKED"


async def test_tokens_of_a_removed_namespace_are_invalid(scene: Scene) -> None:
    scene.namespaces.remove(NAMESPACE)
    for token in (scene.public, "env_good"):
        assert _code(scene.authorizer.client, _call(token)) == "TOKEN_INVALID"


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://a.example", "a.example"),
        ("https://a.example:443", "a.example"),
        ("http://127.0.0.1:8080", "127.0.0.1"),
        ("http://[::1]:8080", "::1"),
        ("null", None),
        ("file:///x", None),
    ],
)
def test_host_is_parsed_from_the_origin(origin: str, host: str | None) -> None:
    assert host_of_origin(origin) == host
