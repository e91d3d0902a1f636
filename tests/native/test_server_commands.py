"""Commands of the native module for game servers: lobbies that the service starts, ports, and
events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from pyservice import _native
from pyservice.calls import Call, EncodedRequest
from tests.native.native_engine import NAMESPACE, VERSION, Requests, attach, open_engine
from tests.support.waiting import until

GAME = ("game", "udp", "number", 0, 0, False, "uncounted")
SERVER = b"s" * 16


@pytest.fixture
def engine() -> Iterator[_native.Engine]:
    engine = open_engine(None)
    yield engine
    engine.close()


@pytest.fixture
def requests(engine: _native.Engine) -> Requests:
    return Requests(engine)


@pytest.fixture
def servers(engine: _native.Engine) -> _native.Servers:
    return engine.servers()


def template(**changed: Any) -> _native.LobbyTemplate:
    fields: dict[str, Any] = {
        "mode": "duel",
        "region": "local",
        "ports": [GAME],
        "max_players": (4, 4, 4),
        "player_token_ttl_ms": 120_000,
        "heartbeat_timeout_ms": 0,
        "heartbeat_grace_ms": 10_000,
        "is_join_enabled": True,
        "lobby_count_max": 10,
    }
    return _native.LobbyTemplate(**(fields | changed))


def find(requests: Requests, creation: _native.LobbyTemplate | int | None) -> _native.Decision:
    request = requests.of_player("find", game_modes=["duel"])
    new_lobby = None if creation is None else (NAMESPACE, VERSION, creation)
    return requests.native.place(request, new_lobby)


def start(requests: Requests) -> bytes:
    """Returns the starting lobby of a find."""
    decision = find(requests, template())
    assert decision.hold
    assert decision.lobby is not None
    return decision.lobby


def ready(engine: _native.Engine, lobby: bytes) -> None:
    token = engine.servers().lobby_token(lobby)
    assert token is not None
    client = ip_address("127.0.0.1")
    call = Call("0" * 32, client.packed, f"Bearer {token}", client=client)
    request = EncodedRequest("ready", call, "proto", are_ports_served=True)
    Requests(engine).decide(request)


def test_find_creates_an_allowed_lobby_and_waits(
    engine: _native.Engine, requests: Requests, servers: _native.Servers
) -> None:
    hold = find(requests, template(tags=[("map", "sea")], lobby_config=b'{"a": 1}'))
    assert hold.lobby is not None
    lobby = engine.lobby(hold.lobby)
    assert lobby is not None
    assert (lobby.is_ours, lobby.is_public, lobby.is_ready, lobby.ports) == (True, True, False, ())
    assert (lobby.tags, lobby.lobby_config) == ({"map": "sea"}, b'{"a": 1}')
    [port] = lobby.leased
    assert (port.name, port.protocol, port.range, port.backend) == ("game", "udp", None, None)
    assert 26_000 <= port.number <= 31_999
    assert servers.wanted_since(0) == (2, True, [(lobby.id, False)], [])

    ready(engine, lobby.id)
    [resolved] = engine.take_resolved()
    assert (resolved.hold, resolved.placed is not None) == (hold.hold, True)


@pytest.mark.parametrize(
    ("creation", "code"),
    [
        (None, "MATCHMAKER_NO_AVAILABLE_LOBBIES"),
        (5, "MATCHMAKER_NO_AVAILABLE_LOBBIES"),
        (0, "MATCHMAKER_TOO_MANY_LOBBIES"),
    ],
)
def test_find_creates_no_lobby_without_permission(
    requests: Requests, creation: int | None, code: str
) -> None:
    error = find(requests, creation).error
    assert error is not None
    assert error.code == code


def test_create_returns_its_own_lobby_or_no_capacity(engine: _native.Engine) -> None:
    with pytest.raises(_native.Refused, match="CAPACITY_EXHAUSTED"):
        engine.create(NAMESPACE, VERSION, 5)
    first = engine.create(NAMESPACE, VERSION, template(is_public=False))
    second = engine.create(NAMESPACE, VERSION, template(is_public=False))
    assert first.lobby != second.lobby


def test_waiting_find_receives_the_exit_code(
    engine: _native.Engine, requests: Requests, servers: _native.Servers
) -> None:
    lobby = start(requests)
    assert servers.exited(lobby, 3)[0] is True
    [resolved] = engine.take_resolved()
    assert resolved.refusal is not None
    error = resolved.refusal.error
    assert error.code == "MATCHMAKER_LOBBY_START_FAILED"
    assert error.metadata == {"reason": "exited", "exit_code": "3"}
    assert servers.wanted_since(2)[3] == [lobby]


def test_idle_lobbies_are_reported_and_stopped_unless_used(
    engine: _native.Engine, requests: Requests, servers: _native.Servers
) -> None:
    lobby, _ = servers.start_idle(NAMESPACE, VERSION, template())
    [group] = servers.take_touched()
    assert (group.namespace, group.version, group.mode, group.region) == (
        NAMESPACE,
        VERSION,
        "duel",
        "local",
    )
    assert (group.starting, group.live, group.empty) == (1, 1, [])
    ready(engine, lobby)
    [group] = servers.take_touched()
    [empty] = group.empty
    assert (empty.lobby, empty.was_used, empty.is_findable, empty.is_ours) == (
        lobby,
        False,
        True,
        True,
    )
    [player] = requests.join(lobby)
    assert servers.stop(lobby, True)[0] is False
    token = servers.lobby_token(lobby)
    assert token is not None
    requests.of_server("disconnected", token, player_token=player)
    assert servers.stop(lobby, True)[0] is True
    assert servers.idle_lobby_groups(NAMESPACE)[0].live == 0


def test_ports_stay_reserved_until_edge_guard_releases_them(servers: _native.Servers) -> None:
    requested = [
        GAME,
        ("web", "https", "host", 0, 0, False, "uncounted"),
        ("raw", "tcp", "range", 20_000, 20_004, False, "uncounted"),
    ]
    ports, _ = servers.lease(SERVER, NAMESPACE, "local", requested)
    assert [(port.name, port.number > 0, port.range) for port in ports] == [
        ("game", True, None),
        ("web", False, None),
        ("raw", False, (20_000, 20_004)),
    ]
    assert servers.leased_servers() == [SERVER]
    assert servers.replace_port(SERVER, "game", ports[0].number)[0] != ports[0].number
    servers.set_backends(SERVER, [("game", "127.0.0.1", 12_000)])
    routes = servers.routes_since(0)
    assert routes.is_complete
    changes = [(route.lease_owner, route.port.name, route.port.backend) for route in routes.changed]
    assert changes == [(SERVER, "game", ("127.0.0.1", 12_000)), (SERVER, "web", None)]
    assert servers.end_lease(SERVER)[0] is True
    assert servers.routes_since(routes.lsn).removed == [SERVER]
    assert servers.ports_returned(SERVER)[0] is True
    assert servers.routes_since(0).removed == []


def test_quarantine_of_any_range_survives_compaction(tmp_path: Path) -> None:
    def resting(engine: _native.Engine) -> int:
        page = engine.render_metrics({}).decode()
        [count] = re.findall(r'^hosting_ports{protocol="udp",state="resting"} (\d+)$', page, re.M)
        return int(count)

    ports, segment_bytes = (40_000, 40_099), 256 << 10
    engine = open_engine(tmp_path, public_ports=ports, segment_bytes=segment_bytes)
    servers = engine.servers()
    [port], _ = servers.lease(SERVER, NAMESPACE, "local", [GAME])
    assert ports[0] <= port.number <= ports[1]
    servers.end_lease(SERVER)
    _, lsn = servers.ports_returned(SERVER)
    assert resting(engine) == 1
    by_host = [
        (f"{number:030}", "https", "host", 0, 0, False, "uncounted") for number in range(1_000)
    ]

    def is_leased(number: int) -> bool:
        try:
            servers.lease(bytes([number]) * 16, NAMESPACE, "local", by_host)
        except _native.Refused as error:
            if error.error.code != "STORAGE_FULL":
                raise
            # The next segment is not prepared yet.
            return False
        return True

    def is_compacted() -> bool:
        return b"\nhosting_compactions_total 0\n" not in engine.render_metrics({})

    for number in range(100):
        until(partial(is_leased, number))
        if is_compacted():
            break
    until(is_compacted)
    engine.close()
    image = max(tmp_path.glob("image-*.img"))
    assert int(image.stem.removeprefix("image-")) >= lsn
    engine = open_engine(tmp_path, public_ports=ports, segment_bytes=segment_bytes)
    assert resting(engine) == 1
    engine.close()


@pytest.mark.parametrize(
    "port",
    [
        ("a", "sctp", "number", 0, 0, False, "uncounted"),
        ("a", "tcp", "anyhow", 0, 0, False, "uncounted"),
    ],
)
def test_unknown_words_are_rejected(port: tuple[str, str, str, int, int]) -> None:
    with pytest.raises(ValueError, match=r"sctp|anyhow"):
        template(ports=[port])


def test_drain_waits_for_own_lobbies_and_for_others_with_players(
    engine: _native.Engine, requests: Requests
) -> None:
    assert engine.lobbies_to_drain(9) == ([], 0)
    attach(engine)
    reserved, _ = attach(engine)
    requests.join(reserved)
    used, token = attach(engine)
    for player_token in requests.join(used, party_size=2):
        requests.of_server("connected", token, player_token=player_token)
    own, _ = engine.servers().start_idle(NAMESPACE, VERSION, template())
    lobbies, count = engine.lobbies_to_drain(9)
    assert [(lobby.id, lobby.players[2]) for lobby in lobbies] == [(used, 2), (own, 0)]
    assert count == 2
    [oldest], count = engine.lobbies_to_drain(1)
    assert (oldest.id, count) == (used, 2)


@pytest.fixture
def cluster() -> Iterator[_native.Engine]:
    engine = open_engine(None, binds_ports_later=True)
    yield engine
    engine.close()


def test_ports_of_a_cluster_belong_to_a_node(cluster: _native.Engine) -> None:
    servers = cluster.servers()
    [requested], _ = servers.lease(SERVER, NAMESPACE, "local", [GAME])
    assert (requested.number, requested.node, requested.host) == (0, "", "")
    [port], _ = servers.bind_ports(SERVER, "node-1", "198.51.100.7")
    assert port.number > 0
    assert (port.node, port.host) == ("node-1", "198.51.100.7")
    [again], _ = servers.bind_ports(SERVER, "node-1", "198.51.100.8")
    assert (again.number, again.host) == (port.number, port.host)
    [route] = servers.routes_since(0, "node-1").changed
    assert (route.lease_owner, route.port.host) == (SERVER, "198.51.100.7")
    assert servers.routes_since(0, "node-2").changed == []
    assert servers.nodes() == ["node-1"]
    lsn, nodes = servers.nodes_changed_since(0)
    assert nodes == ["node-1"]
    assert servers.nodes_changed_since(lsn) == (lsn, [])
    page = cluster.render_metrics({}).decode()
    assert 'hosting_ports{node="node-1",protocol="udp",state="leased"} 1' in page
    assert "hosting_ports{protocol=" not in page
    assert servers.end_lease(SERVER)[0] is True
    assert servers.ports_returned(SERVER, "node-2")[0] is False
    assert servers.ports_returned(SERVER, "node-1")[0] is True


def test_lobby_of_a_cluster_is_ready_after_its_ports_are_bound(cluster: _native.Engine) -> None:
    servers = cluster.servers()
    lobby, _ = servers.start_idle(NAMESPACE, VERSION, template())
    with pytest.raises(_native.Refused) as refused:
        servers.ready(lobby)
    assert refused.value.error.code == "OVERLOADED"
    servers.bind_ports(lobby, "node-1", "198.51.100.7")
    servers.ready(lobby)
    found = cluster.lobby(lobby)
    assert found is not None
    [port] = found.leased
    address = _native.PlayerAddresses(None, "192.0.2.1", "192.0.2.1", False)
    assert address.address_of(port, lobby, "local", "lobby")[:2] == ("198.51.100.7", port.number)
    with pytest.raises(_native.Refused) as refused:
        servers.bind_ports(lobby, "node-2", "198.51.100.8")
    assert refused.value.error.code == "IN_USE"


def test_ports_of_a_gone_node_return_without_its_edge_guard(cluster: _native.Engine) -> None:
    servers = cluster.servers()
    servers.lease(SERVER, NAMESPACE, "local", [GAME])
    servers.bind_ports(SERVER, "node-1", "198.51.100.7")
    servers.return_ports_of_node("node-1")
    servers.end_lease(SERVER)
    until(lambda: servers.routes_since(0, "node-1").removed == [])
    assert servers.ports_returned(SERVER, "node-1")[0] is False


def test_node_without_a_name_is_refused(servers: _native.Servers) -> None:
    with pytest.raises(ValueError, match="a node has a name"):
        servers.bind_ports(SERVER, "", "198.51.100.7")
