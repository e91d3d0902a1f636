"""Mock operations for dev_ tokens."""

from __future__ import annotations

import time
from ipaddress import ip_address
from typing import Any

import pytest

from pyservice.calls import Call, Caller, EncodedRequest
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.ids import parse_uuid
from pyservice.pb.hosting.v1 import lobby_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.schema.methods import METHODS
from tests.support.matchmaker_scene import MatchmakerScene, expect_error
from tests.support.namespace_configurations import NAMESPACE_ID, version

pytestmark = pytest.mark.anyio

TOKEN_ID = "0192f000-0000-7000-8000-0000000000d1"
OTHER_ID = "0192f000-0000-7000-8000-0000000000d2"
NAMESPACE = raw_id(NAMESPACE_ID)
END_MS = time.time_ns() // 1_000_000 + 86_400_000
NIL = "00000000-0000-0000-0000-000000000000"
RANGE = {"proxy": "none", "protocol": "udp", "port_range": {"min": 20000, "max": 20009}}
PORTS: dict[str, dict[str, Any]] = {
    "duel": {
        "game": {"protocol": "tcp", "dev_port": 4000},
        "chat": {"protocol": "https", "dev_port": 4001, "dev_protocol": "http"},
        "voice": {"protocol": "udp", "dev_port_range": {"min": 5000, "max": 5009}},
    },
    "quiet": {"web": {"protocol": "http"}, "tls": {}},
    "range": {"udp": RANGE},
    "bound": {"game": {"protocol": "tcp", "port": 7777}},
}
MODES: dict[str, Any] = {name: {"docker": {"ports": ports}} for name, ports in PORTS.items()}
MODES["duel"]["max_players"] = 2
MODES["quiet"]["listable"] = False
MODES["range"]["docker"]["network_mode"] = "host"


class DevelopmentScene(MatchmakerScene):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.tokens = {
            "one": engine.development_token(NAMESPACE, raw_id(TOKEN_ID), END_MS),
            "two": engine.development_token(NAMESPACE, raw_id(OTHER_ID), END_MS),
            "late": engine.development_token(NAMESPACE, raw_id(TOKEN_ID), 1_700_000_000_000),
            "elsewhere": engine.development_token(bytes(16), raw_id(TOKEN_ID), END_MS),
            "forged": "forged",
        }
        self.table = self.operations()
        self.put_namespace()

    def put_namespace(self, level: dict[str, Any] | None = None, **token: Any) -> None:
        entry = {"token_id": TOKEN_ID, "expires_ms": str(END_MS), **token}
        versions = [version(level=level, **MODES)]
        self.feed(versions=versions, development_tokens=[entry])

    async def call(self, name: str, request: Any = None, token: str = "one", **call: Any) -> Any:
        operation = self.table[f"hosting.v1.Matchmaker.{name}"]
        client = ip_address("127.0.0.1")
        authorization = f"Bearer {self.tokens.get(token, token)}"
        context = Call("0" * 32, client.packed, authorization, client=client, **call)
        if operation.answer is not None:
            message = request.SerializeToString(deterministic=True) if request else b""
            method = METHODS[operation.method]
            reply = await operation.answer(EncodedRequest(method.slug, context, "proto", message))
            if not isinstance(reply, str):
                return method.response.FromString(reply.proto())
            assert reply == "mock_response"
        caller = operation.authorize(context)
        assert isinstance(caller, Caller)
        return await operation.run(request, caller)

    async def code(self, name: str, request: Any = None, token: str = "one") -> str:
        return (await expect_error(self.call(name, request, token))).code

    async def find_lobby(self, *modes: str, **fields: Any) -> pb.FindLobbyResponse:
        request = pb.FindLobbyRequest(game_modes=modes or ["duel"], **fields)
        answer: pb.FindLobbyResponse = await self.call("FindLobby", request)
        return answer


@pytest.fixture
async def scene(engine: Engine) -> DevelopmentScene:
    return DevelopmentScene(engine)


def port_fields(port: lobby_pb2.Port) -> tuple[Any, ...]:
    span = (port.port_range.min, port.port_range.max) if port.HasField("port_range") else None
    host = port.host if port.HasField("host") else None
    number = port.port if port.HasField("port") else None
    return (port.hostname, host, number, span, port.is_tls)


def shown_ports(answer: Any) -> dict[str, tuple[Any, ...]]:
    return {name: port_fields(port) for name, port in answer.ports.items()}


async def test_mock_find_returns_the_machine_of_the_developer(scene: DevelopmentScene) -> None:
    answer = await scene.find_lobby("duel")
    assert answer.lobby.lobby_id == NIL
    region = answer.lobby.region
    assert (region.region_id, region.display_name) == ("dev-lcl", "Local")
    assert dict(answer.lobby.ports) == dict(answer.ports)
    assert answer.player.token.startswith("player_")
    assert answer.lobby.player == answer.player
    assert not answer.players


@pytest.mark.parametrize(
    ("mode", "ports"),
    [
        (
            "duel",
            {
                "game": ("127.0.0.1", "127.0.0.1:4000", 4000, None, False),
                "chat": ("127.0.0.1", "127.0.0.1:4001", 4001, None, False),
                "voice": ("127.0.0.1", None, None, (5000, 5009), False),
            },
        ),
        (
            "quiet",
            {
                "web": ("127.0.0.1", "127.0.0.1:80", 80, None, False),
                "tls": ("127.0.0.1", "127.0.0.1:443", 443, None, True),
            },
        ),
        ("range", {"udp": ("127.0.0.1", None, None, (20000, 20009), False)}),
        ("bound", {"game": ("127.0.0.1", "127.0.0.1:7777", 7777, None, False)}),
    ],
)
async def test_mock_find_returns_version_ports(
    scene: DevelopmentScene, mode: str, ports: dict[str, Any]
) -> None:
    assert shown_ports(await scene.find_lobby(mode)) == ports


async def test_mock_hostname_precedence(scene: DevelopmentScene) -> None:
    scene.put_namespace({"dev_hostname": "dev.example.com"})
    port = (await scene.find_lobby()).ports["game"]
    assert (port.hostname, port.host) == ("dev.example.com", "dev.example.com:4000")
    scene.put_namespace({"dev_hostname": "dev.example.com"}, hostname="::1")
    port = (await scene.find_lobby()).ports["game"]
    assert (port.hostname, port.host) == ("::1", "[::1]:4000")


async def test_token_ports_replace_version_ports(scene: DevelopmentScene) -> None:
    scene.put_namespace(
        hostname="10.0.0.7",
        ports={
            "a": {"port": 9000, "protocol": "udp"},
            "b": {"port_range": {"min": 1, "max": 2}, "protocol": "udp"},
            "c": {"protocol": "https"},
            "d": {"protocol": "tcp"},
        },
    )
    expected = {
        "a": ("10.0.0.7", "10.0.0.7:9000", 9000, None, False),
        "b": ("10.0.0.7", None, None, (1, 2), False),
        "c": ("10.0.0.7", "10.0.0.7:443", 443, None, True),
        "d": ("10.0.0.7", "10.0.0.7:80", 80, None, False),
    }
    answer = await scene.find_lobby("later")
    assert shown_ports(answer) == expected
    joined = await scene.call("JoinLobby", pb.JoinLobbyRequest(lobby_id=NIL))
    assert dict(joined.ports) == dict(answer.ports)
    # Another token gets the ports of the version.
    request = pb.FindLobbyRequest(game_modes=["bound"])
    assert list((await scene.call("FindLobby", request, "two")).ports) == ["game"]


async def test_mock_modes(scene: DevelopmentScene) -> None:
    request = pb.FindLobbyRequest(game_modes=["duel", "brawl"])
    assert await scene.code("FindLobby", request) == "MATCHMAKER_GAME_MODE_NOT_FOUND"
    answer = await scene.call("JoinLobby", pb.JoinLobbyRequest(lobby_id=NIL))
    assert answer.lobby.lobby_id == NIL
    assert sorted(answer.ports) == ["chat", "game", "tls", "udp", "voice", "web"]


async def test_mock_player_tokens_are_valid_once_for_their_dev_token(
    scene: DevelopmentScene,
) -> None:
    answer = await scene.find_lobby(party_size=3)
    assert answer.players[0] == answer.player
    tokens = [player.token for player in answer.players]
    assert len(set(tokens)) == 3
    for token in tokens:
        request = pb.PlayerConnectedRequest(player_token=token)
        assert await scene.code("PlayerConnected", request, "two") == "PLAYER_TOKEN_INVALID"
        assert await scene.call("PlayerConnected", request) == pb.PlayerConnectedResponse()
        assert await scene.code("PlayerConnected", request) == "PLAYER_TOKEN_CONSUMED"


async def test_used_mock_tokens_count_for_the_developer_group(
    scene: DevelopmentScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = scene.engine.player_records
    consume = records.consume_mock
    groups: list[bytes] = []

    async def consume_mock(group: bytes, *others: Any) -> None:
        groups.append(group)
        await consume(group, *others)

    monkeypatch.setattr(records, "consume_mock", consume_mock)
    answer = await scene.find_lobby()
    await scene.call("PlayerConnected", pb.PlayerConnectedRequest(player_token=answer.player.token))
    assert groups == [scene.namespaces.group_of(NAMESPACE)] != [NAMESPACE]


async def test_repeated_mock_request_returns_the_same_tokens(scene: DevelopmentScene) -> None:
    request = pb.FindLobbyRequest(game_modes=["duel"], party_size=2)
    keyed = [await scene.call("FindLobby", request, idempotency_key="key") for _ in range(2)]
    assert keyed[0] == keyed[1]
    others = [
        await scene.call("FindLobby", request),
        await scene.call("FindLobby", request, idempotency_key="other"),
        await scene.call("FindLobby", request, "two", idempotency_key="key"),
    ]
    tokens = {answer.player.token for answer in (keyed[0], *others)}
    assert len(tokens) == 4


async def test_mock_lists_show_the_developer_machine(scene: DevelopmentScene) -> None:
    response = await scene.call("ListLobbies", pb.ListLobbiesRequest())
    assert [mode.game_mode_id for mode in response.game_modes] == ["bound", "duel", "range"]
    [lobby] = response.lobbies
    assert (lobby.lobby_id, lobby.game_mode_id, lobby.region_id) == (NIL, "bound", "dev-lcl")
    assert lobby.max_players_normal == 32
    regions = await scene.call("ListRegions", pb.ListRegionsRequest())
    assert regions.regions == response.regions
    [region] = regions.regions
    assert (region.region_id, region.region_display_name) == ("dev-lcl", "Local")
    statistics = await scene.call("GetPlayerStatistics", pb.GetPlayerStatisticsRequest())
    assert statistics.player_count == 0
    assert sorted(statistics.game_modes) == sorted(MODES)


async def test_mock_operations_leave_the_engine_unchanged(scene: DevelopmentScene) -> None:
    addresses = {name: pb.AttachedPort(address="127.0.0.1", port=1) for name in PORTS["duel"]}
    lobby = await scene.attach(ports=addresses)
    before = scene.engine.status().last
    for name in (
        "PlayerDisconnected",
        "LobbyReady",
        "SetLobbyClosed",
        "SetLobbyState",
        "Heartbeat",
    ):
        request, answer = getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response")
        for _ in range(2):
            assert await scene.call(name, request()) == answer()
    await scene.find_lobby(party_size=64)
    await scene.call("JoinLobby", pb.JoinLobbyRequest(lobby_id=NIL))
    await scene.call("ListLobbies", pb.ListLobbiesRequest())
    assert scene.engine.status().last == before
    assert scene.engine.lobby(parse_uuid(lobby.lobby_id) or b"") is not None


async def test_mock_skips_captcha_and_verification(scene: DevelopmentScene) -> None:
    captcha = {"captcha_a": {"secret_key": "s", "site_key": "k"}}
    scene.put_namespace({"captcha": captcha})
    assert scene.namespaces.resolved(NAMESPACE).admission_rules is not None
    assert (await scene.find_lobby()).lobby.lobby_id == NIL


async def test_other_tokens_get_real_operations(scene: DevelopmentScene) -> None:
    public = scene.engine.public_token(NAMESPACE, raw_id(OTHER_ID))
    regions = await scene.call("ListRegions", pb.ListRegionsRequest(), public)
    assert [region.region_id for region in regions.regions] == ["north", "south"]
