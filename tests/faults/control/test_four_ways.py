"""Each call of the control plane has one outcome over HTTP and gRPC, with and without the front."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.four_ways import Ways
from tests.support.full_service import ARENA_MODES
from tests.support.generated_control_calls import ControlCallGenerator
from tests.support.generated_messages import GeneratedCall
from tests.support.generated_requests import UNKNOWN_ID
from tests.support.twin import Twin
from tests.support.twin_services import twin_services

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

DIFFERENCES_MAX: Final = 5
OK_SHARE_MIN: Final = 0.25
CONFIG: Final[dict[str, Any]] = {"matchmaker": {"game_modes": ARENA_MODES}}
KEY: Final = ("idempotency-key", "key-1")
OWN: Final[dict[str, Any]] = {"game_id": "own"}
PROD: Final[dict[str, Any]] = {"game_id": "own", "namespace_id": "prod"}
GAME: Final[dict[str, Any]] = {
    "developer_group_id": "<<owner.group>>",
    "display_name": "Own",
    "name_id": "own",
}
TRIAL: Final[dict[str, Any]] = {**OWN, "display_name": "Trial", "name_id": "trial"}

Case = tuple[str, GeneratedCall, Mapping[str, str]]


def _case(
    code: str,
    operation: str,
    *metadata: tuple[str, str],
    token: str = "owner.token",
    names: Mapping[str, str] | None = None,
    **fields: Any,
) -> Case:
    """`names` are those of the fields of the response."""
    authorization = ("authorization", f"Bearer <<{token}>>")
    return code, GeneratedCall(operation, fields, (authorization, *metadata)), names or {}


SETUP: Final = [
    _case("OK", "create_game", KEY, **GAME, names={"game_id": "own.game"}),
    _case("OK", "create_game", **GAME | {"name_id": "other"}, names={"game_id": "other.game"}),
    _case(
        "OK",
        "create_version",
        **OWN,
        display_name="1",
        config=CONFIG,
        names={"version_id": "own.version"},
    ),
    _case(
        "OK",
        "create_version",
        **OWN,
        display_name="2",
        config=CONFIG,
        names={"version_id": "own.other-version"},
    ),
    _case("OK", "set_version", **PROD, version_id="<<own.version>>"),
    _case(
        "OK",
        "create_namespace",
        **TRIAL,
        version_id="<<own.version>>",
        names={"namespace_id": "own.namespace"},
    ),
    _case("OK", "create_game_token", **OWN, names={"token": "game.token"}),
    _case(
        "OK",
        "create_service_token",
        game_id="own",
        environment_id="prod",
        names={"token": "service.token"},
    ),
    _case(
        "OK",
        "create_public_token",
        **PROD,
        names={"token": "public.token", "token_id": "public.id"},
    ),
    _case(
        "OK",
        "create_public_token",
        **PROD,
        names={"token": "revoked.token", "token_id": "revoked.id"},
    ),
    _case("OK", "revoke_namespace_token", **PROD, token_id="<<revoked.id>>"),
]
CASES: Final = [
    _case("OK", "create_game", KEY, **GAME),
    _case("IDEMPOTENCY_KEY_REUSED", "create_game", KEY, **GAME | {"name_id": "third"}),
    _case("HEADER_INVALID", "create_game", ("idempotency-key", "a b"), **GAME),
    _case("VALIDATION_FAILED", "create_game", **GAME),
    _case("VALIDATION_FAILED", "create_game", **GAME | {"name_id": "No name"}),
    _case("BODY_INVALID", "create_game"),
    _case("FORBIDDEN", "create_game", token="game.token", **GAME | {"name_id": "third"}),
    _case("GROUP_NOT_FOUND", "create_game", **GAME | {"developer_group_id": UNKNOWN_ID}),
    _case("OK", "validate_game", display_name="Own", name_id="own"),
    _case("OK", "get_game", **OWN),
    _case("OK", "get_game", game_id="<<own.game>>", token="game.token"),
    _case("GAME_NOT_FOUND", "get_game", game_id="other", token="game.token"),
    _case("GAME_NOT_FOUND", "get_game", game_id=UNKNOWN_ID),
    _case("ID_INVALID", "get_game", game_id="OWN"),
    _case("OK", "get_games"),
    _case("OK", "get_games", limit=1),
    _case("QUERY_INVALID", "get_games", limit=0),
    _case("QUERY_INVALID", "get_games", cursor="x"),
    _case("TOKEN_INVALID", "get_games", token="owner.token|tampered"),
    _case("FORBIDDEN", "get_games", token="public.token"),
    _case("OK", "list_namespaces", **OWN),
    _case("OK", "get_namespace", **PROD),
    _case("NAMESPACE_NOT_FOUND", "get_namespace", **OWN, namespace_id="missing"),
    _case("VALIDATION_FAILED", "create_namespace", **TRIAL, version_id="<<own.version>>"),
    _case("VALIDATION_FAILED", "create_namespace", **TRIAL, version_id=UNKNOWN_ID),
    _case("OK", "validate_namespace", **TRIAL),
    _case("OK", "set_version", **PROD, version_id="<<own.other-version>>"),
    _case("VERSION_NOT_FOUND", "set_version", **PROD, version_id=UNKNOWN_ID),
    _case("OK", "version_history", **PROD),
    _case("OK", "set_mm_config", **PROD, lobby_count_max=7, max_players=8),
    _case("VALIDATION_FAILED", "set_mm_config", **PROD, lobby_count_max=0, max_players=2**32 - 1),
    _case("OK", "patch_mm_config", **PROD, lobby_count_max=9),
    _case("OK", "add_domain", **PROD, domain="play.example.com"),
    _case("OK", "set_cdn_auth", **PROD, auth_type="basic"),
    _case("BODY_INVALID", "set_cdn_auth", **PROD, auth_type="x"),
    _case("OK", "list_versions", **OWN),
    _case("OK", "get_version", **OWN, version_id="<<own.version>>"),
    _case("IN_USE", "delete_version", **OWN, version_id="<<own.version>>"),
    _case("VALIDATION_FAILED", "create_version", **OWN, display_name=" ", config={}),
    _case("OK", "validate_version", **OWN, display_name="3", config={}),
    _case("OK", "reserve_version_name", **OWN),
    _case("OK", "list_namespace_tokens", **PROD),
    _case("TOKEN_NOT_FOUND", "revoke_namespace_token", **PROD, token_id=UNKNOWN_ID),
    _case("OK", "list_group_tokens", group_id="<<owner.group>>"),
    _case("TOKEN_NOT_FOUND", "revoke_group_token", group_id="<<owner.group>>", token_id=UNKNOWN_ID),
    _case("OK", "inspect_token", token="game.token"),
    _case("FORBIDDEN", "inspect_token", token="revoked.token"),
    _case("OK", "create_development_token", **PROD, hostname="127.0.0.1"),
    _case("GROUP_NOT_FOUND", "get_audit", group_id=UNKNOWN_ID),
    _case("GROUP_NOT_FOUND", "get_quotas", group_id=UNKNOWN_ID),
    _case("OK", "bootstrap"),
    _case("OK", "delete_namespace", **OWN, namespace_id="trial"),
    _case("NAMESPACE_NOT_FOUND", "get_namespace", **OWN, namespace_id="trial"),
    _case("OK", "delete_game", **OWN),
    _case("GAME_NOT_FOUND", "get_game", **OWN),
]


@pytest.fixture
async def twins(tmp_path: Path) -> AsyncIterator[tuple[Ways, Sequence[Twin]]]:
    async with twin_services(tmp_path) as (ways, twins):
        differences = await _differences(ways, twins, SETUP)
        assert not differences, "\n\n".join(differences)
        yield ways, twins


@pytest.mark.full
async def test_cases_have_one_outcome(twins: tuple[Ways, Sequence[Twin]]) -> None:
    differences = await _differences(*twins, CASES)
    assert not differences, "\n\n".join(differences)


async def _differences(ways: Ways, twins: Sequence[Twin], cases: Sequence[Case]) -> list[str]:
    differences = []
    for expected, call, names in cases:
        compared = await ways.compare(call)
        if compared.difference is not None:
            differences.append(compared.difference)
        elif compared.code != expected:
            differences.append(f"{compared.code} instead of {expected}: {call}")
            if names:
                break  # Later cases need them.
        else:
            for twin, body in zip(twins, compared.bodies, strict=True):
                for field, name in names.items():
                    twin.put(name, json.loads(body)[field])
    return differences


@pytest.mark.full
async def test_generated_calls_have_one_outcome(twins: tuple[Ways, Sequence[Twin]]) -> None:
    count = 5_000
    ways, (first, *_) = twins
    generator, codes = ControlCallGenerator(seed=2), Counter[str]()
    differences: list[str] = []
    while codes.total() < count and len(differences) < DIFFERENCES_MAX:
        call = generator.draw()
        compared = await ways.compare(call)
        codes[compared.code] += 1
        if compared.difference is not None:
            differences.append(compared.difference)
        elif compared.code == "OK":
            generator.note(call, json.loads(compared.bodies[0]), first.name_of)
    print(codes)
    assert not differences, "\n\n".join(differences)
    assert codes["OK"] >= OK_SHARE_MIN * count
