"""Network isolation of runs: what a game server reaches, what it binds, and what stays closed."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.isolation_trials import network_isolation_problem
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.network_isolation import (
    CONNECTIONS_PER_MB,
    OWN_PORT_SOCKETS_MAX,
    SOCKETS_MAX,
    NetworkPolicy,
    refused_networks,
)
from pyservice.runtime.node_preparation import SYSTEM_PATHS
from pyservice.runtime.process_environment import ProcessPort
from pyservice.runtime.run_folder import Isolation
from pyservice.runtime.run_lifecycle import HOST_NETWORK_REFUSED
from pyservice.runtime.run_requests import PortRequest, Resources, RunRequest
from pyservice.runtime.shared_network import NODE_IS_SHARED
from tests.support.runtime_host import SHELL, RuntimeHost, build_of
from tests.support.socket_queues import exchanged_datagrams, growth, queue_bytes
from tests.support.tiers import one_of
from tests.support.upload_files import tar
from tests.support.waiting import eventually

PROGRAMS: Final = Path(__file__).parent.parent / "programs"
PROGRAM: Final = PROGRAMS / "network_attacks.py"
QUEUES: Final = PROGRAMS / "socket_queues.py"
SESSIONS: Final = PROGRAMS / "datagram_sessions.py"
BUILD: Final = "0192f000-0000-7000-8000-00000000a0e1"
BUILDS: Final = {
    PROGRAM: BUILD,
    QUEUES: "0192f000-0000-7000-8000-00000000a0e3",
    SESSIONS: "0192f000-0000-7000-8000-00000000a0e4",
}
OTHER_BUILD: Final = "0192f000-0000-7000-8000-00000000a0e2"
FOREIGN_PORT: Final = 11_999
REFUSED: Final = "EPERM"
CLOSED: Final = (
    *("169.254.169.254", "10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1", "0.0.0.0"),
    *("224.0.0.1", "::1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "64:ff9b::a00:1"),
    *("2002:a00:1::1", "fd00::1"),
)
OPEN: Final = ("203.0.114.1", "64:ff9b::cb00:7201", "2002:cb00:7201::1")
OTHER_ERRORS: Final = {
    *("ping", "mptcp", "udp 224.0.0.1", "udp 64:ff9b::a00:1", "udp 2002:a00:1::1"),
    *("udp fd00::1", "udp ::ffff:10.1.2.3", "udp 0.0.0.0"),
}
"""Attempts that a kernel can refuse with another error, for example without a route."""

pytestmark = pytest.mark.anyio

ISOLATIONS: Final[tuple[Isolation, ...]] = ("user", "namespace", "none")


@pytest.fixture
async def isolated(host: RuntimeHost, request: pytest.FixtureRequest) -> RuntimeHost:
    groups = ControlGroups.find(host.folder)
    problem = await network_isolation_problem(groups, KEEPER_BINARY, host.folder)
    if problem is not None:
        pytest.skip(f"this kernel cannot isolate the network: {problem}")
    isolation: Isolation = getattr(request, "param", "user")
    host.node = dataclasses.replace(
        host.node,
        isolation=isolation,
        shared_paths=(*SYSTEM_PATHS, Path(sys.base_prefix)),
        groups=groups,
        network=NetworkPolicy("internet"),
    )
    await host.anew()
    return host


@pytest.fixture
def service() -> Iterator[tuple[str, int]]:
    """Returns the address of a loopback service that answers `y` to each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1)
                    connection.sendall(b"y")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def machine_addresses() -> list[str]:
    """Returns the address from which this machine reaches others, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("1.1.1.1", 9))
        except OSError:
            return []
        return [probe.getsockname()[0]]


def want(
    host: RuntimeHost, goals: dict[str, Any], env: dict[str, str] | None = None, **more: Any
) -> RunRequest:
    none: dict[str, Any] = {"closed": [], "foreign_ports": [], "open": {}, "datagrams": []}
    return want_program(host, PROGRAM, none | goals, env, **more)


def want_program(
    host: RuntimeHost, program: Path, goals: Any, env: dict[str, str] | None = None, **more: Any
) -> RunRequest:
    command = (os.path.realpath(sys.executable), "-S", "attack.py")
    host.store.archives[BUILDS[program]] = tar(
        {
            "server.json": json.dumps({"command": command}).encode(),
            "attack.py": program.read_bytes(),
        }
    )
    return host.want(
        "",
        build_id=BUILDS[program],
        args=(),
        env={
            "GOALS": json.dumps(goals),
            "SOCKETS_MAX": str(SOCKETS_MAX),
            "OWN_PORT_SOCKETS_MAX": str(OWN_PORT_SOCKETS_MAX),
        },
        own_env=env or {},
        ports={"game": PortRequest("udp")},
        **more,
    )


async def results(host: RuntimeHost, order: RunRequest, last: str) -> dict[str, set[str]]:
    async def look() -> dict[str, set[str]] | None:
        by_name: dict[str, set[str]] = {}
        for line in host.of(order).lines():
            assert line.stream == "std_out", line.text
            what, result = json.loads(line.text)
            by_name.setdefault(what, set()).add(result)
        return by_name if last in by_name else None

    found: dict[str, set[str]] = await eventually(look)
    return found


@pytest.mark.parametrize("isolated", one_of(3, ISOLATIONS), indirect=True)
async def test_forbidden_uses_of_the_network_fail(
    isolated: RuntimeHost, service: tuple[str, int]
) -> None:
    number = service[1]
    closed = [service, *((address, number) for address in (*CLOSED, *machine_addresses()))]
    order = want(
        isolated,
        {"closed": closed, "foreign_ports": [FOREIGN_PORT], "datagrams": OPEN},
    )
    found = await results(isolated, order, "serving")
    unnamed_port = int(found.pop("unnamed port").pop())
    # The answer to a connection is dropped, so that the attempt ends by its own time limit.
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", unnamed_port), timeout=0.5)
    for what in ("own tcp", "own udp", "own v6", "any port", "sockets", "own sockets", "serving"):
        assert found.pop(what) == {"ok"}, what
    assert found.pop("short size") == {"EINVAL"}
    for name in ("receive", "send"):
        sizes = [json.loads(text) for text in found.pop(f"{name} buffers")]
        assert sizes == [expected_sizes(name)]
        assert int(found.pop(f"raced {name} buffer").pop()) <= sizes[0][-1]
    # A machine without a route gives another error, but not that of the rules.
    for address in OPEN:
        assert REFUSED not in found.pop(f"datagram {address}"), address
    if isolated.node.isolation == "none":
        del found["packet"]  # only a program with capabilities of root has such a socket
    unexpected = {what: result for what, result in found.items() if result != {REFUSED}}
    assert set(unexpected) <= OTHER_ERRORS, unexpected
    assert "ok" not in set().union(*unexpected.values()), unexpected


def expected_sizes(name: str) -> list[int]:
    """Sizes of ten large buffers: the kernel doubles them, and has limits of its own."""
    file = Path("/proc/sys/net/core", {"receive": "rmem_max", "send": "wmem_max"}[name])
    limit = int(file.read_text())
    return [2 * min(limit, 4 << 20)] * 8 + [2 * min(limit, 106_496)] * 2


@pytest.mark.full
@pytest.mark.parametrize("isolated", ["user"], indirect=True)
async def test_filled_socket_queues_stay_within_their_sum(isolated: RuntimeHost) -> None:
    if isolated.node.groups.memory is None:
        pytest.skip("no control group of memory can be created")
    memory_mb = 32
    # Each of two listening sockets takes a place on the own port.
    datagrams_max = OWN_PORT_SOCKETS_MAX - 2
    connections_max = CONNECTIONS_PER_MB * memory_mb
    before = queue_bytes()
    order = want_program(
        isolated,
        QUEUES,
        [100, connections_max + 100],
        resources=Resources(1_000, memory_mb),
    )

    async def counts() -> dict[str, int] | None:
        lines = list(isolated.of(order).lines())
        assert all(line.stream == "std_out" for line in lines), lines
        return json.loads(lines[0].text) if lines else None

    found = await eventually(counts, timeout_s=60)
    grown = growth(before)
    assert found == {
        "datagrams": datagrams_max,
        "accepted": 100,
        "waiting": connections_max - 100,
    }
    assert sum(grown.values()) <= (memory_mb << 20) + connections_max * (32 << 10)
    assert exchanged_datagrams(100) == 100


@pytest.mark.full
async def test_a_server_reaches_its_api_and_answers_its_peers(
    isolated: RuntimeHost, service: tuple[str, int]
) -> None:
    host, number = service
    variables = {"HOSTING_API_URL": f"http://{host}:{number}"}
    order = want(isolated, {"open": {"api": service}}, variables)
    found = await results(isolated, order, "serving")
    assert found["api"] == {"ok"}
    placed = await isolated.reports.wait_for(order.id, "placed")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as player:
        player.settimeout(10)
        player.connect(placed["game"])
        player.send(b"hello")
        assert player.recv(64) == b"hello"
    with socket.create_connection(placed["game"], timeout=10) as stream:
        stream.sendall(b"hello")
        assert stream.recv(64) == b"hello"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.sendto(b"hello", placed["game"])
        found = await results(isolated, order, "reply to an unconnected peer")
    assert found["reply to an unconnected peer"] == {REFUSED}


@pytest.mark.parametrize("sockets_max", [100, OWN_PORT_SOCKETS_MAX])
async def test_a_server_has_a_connected_socket_for_each_player_up_to_the_limit(
    isolated: RuntimeHost, sockets_max: int
) -> None:
    policy = NetworkPolicy("internet", own_port_sockets_max=sockets_max)
    isolated.node = dataclasses.replace(isolated.node, network=policy)
    await isolated.anew()
    order = want_program(isolated, SESSIONS, None)

    async def is_serving() -> bool:
        return any(line.text == "serving" for line in isolated.of(order).lines())

    await eventually(is_serving)
    address = (await isolated.reports.wait_for(order.id, "placed"))["game"]
    with contextlib.ExitStack() as stack:
        # One socket receives the first datagram of each player.
        for _ in range(sockets_max - 1):
            player = stack.enter_context(connected_player(address))
            for _ in range(2):
                player.send(b"hello")
                assert player.recv(64) == b"hello"
        refused = stack.enter_context(connected_player(address))
        refused.send(b"hello")
        assert refused.recv(64) == REFUSED.encode()


def connected_player(address: tuple[str, int]) -> socket.socket:
    player = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    player.settimeout(10)
    player.connect(address)
    return player


async def test_host_mode_removes_the_isolation(
    isolated: RuntimeHost, service: tuple[str, int]
) -> None:
    order = want(isolated, {"open": {"service": service}}, has_host_network=True)
    assert (await results(isolated, order, "serving"))["service"] == {"ok"}


async def test_host_mode_needs_consent(host: RuntimeHost) -> None:
    async def may_use_host_network(build_id: str) -> bool:
        return build_id != SHELL

    host.may_use_host_network = may_use_host_network
    await host.anew()
    refused = host.want(has_host_network=True)
    end = await host.reports.end(refused.id)
    assert (end.reason, end.message) == ("exec_failed", HOST_NETWORK_REFUSED)
    await host.running(has_host_network=False)


@pytest.mark.full
async def test_rules_outlive_the_service_and_end_with_the_run(
    isolated: RuntimeHost, service: tuple[str, int]
) -> None:
    groups = isolated.node.groups
    assert groups.network is not None
    order = want(isolated, {"closed": [service]})
    await results(isolated, order, "serving")
    assert (groups.network / order.id).is_dir()
    await isolated.anew()
    assert isolated.supervisor.is_known(order.id)
    isolated.supervisor.end(order.id, 0)
    await isolated.reports.end(order.id)

    async def is_removed() -> bool:
        return not groups.network or not (groups.network / order.id).exists()

    await eventually(is_removed)


async def test_groups_do_not_share_a_node_without_network_isolation(host: RuntimeHost) -> None:
    async def group_of_build(build_id: str) -> str:
        return "first" if build_id == SHELL else "second"

    host.group_of_build = group_of_build
    host.store.archives[OTHER_BUILD] = build_of("sh", "-c")
    await host.anew()
    first = await host.running()
    await host.running()
    refused = host.want(build_id=OTHER_BUILD)
    end = await host.reports.end(refused.id)
    assert (end.reason, end.message) == ("exec_failed", NODE_IS_SHARED)
    for order in list(host.supervisor.runs):
        host.supervisor.end(order, 0)
    await host.reports.end(first.id)

    async def is_idle() -> bool:
        return not host.supervisor.runs

    await eventually(is_idle)
    await host.running(build_id=OTHER_BUILD)


def test_refused_networks_contain_every_address_that_is_not_global() -> None:
    networks = [ipaddress.ip_network(one) for one in refused_networks("internet")]
    samples = [int(network.network_address) for network in networks if network.version == 4]
    for base in (*samples, *(one - 1 for one in samples if one)):
        address = ipaddress.IPv4Address(base)
        is_refused = any(address in network for network in networks if network.version == 4)
        assert is_refused or (address.is_global and not address.is_multicast), address


@pytest.mark.parametrize(
    ("egress", "address", "is_refused"),
    [
        ("internet", "10.0.0.1", True),
        ("internet", "8.8.8.8", False),
        ("internet", "168.63.129.16", True),
        ("any", "168.63.129.16", True),
        ("any", "10.0.0.1", False),
        ("any", "fd00::1", False),
        ("any", "127.0.0.1", True),
        ("any", "169.254.169.254", True),
        ("any", "::ffff:127.0.0.1", True),
    ],
)
def test_egress_selects_networks(egress: Any, address: str, is_refused: bool) -> None:
    networks = map(ipaddress.ip_network, refused_networks(egress))
    one = ipaddress.ip_address(address)
    assert (
        any(one in network for network in networks if network.version == one.version) == is_refused
    )


def test_rules_allow_the_api_resolvers_and_listed_networks(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("search example.com\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\n")
    listed = (ipaddress.ip_network("10.9.0.0/16"),)
    variables = {"HOSTING_API_URL": "http://0.0.0.0:8080", "HOSTING_GRPC_ADDRESS": "[::1]:9000"}
    ports = {"game": ProcessPort(12_000)}
    rules = NetworkPolicy("internet", listed, resolvers_file=file).rules(
        tmp_path, ports, variables, memory_mb=512
    )
    assert rules.ports == ["12000"]
    assert rules.allowed == [
        *("127.0.0.0/8 12000", "::1/128 12000"),
        *("0.0.0.0/32 8080", "127.0.0.1/32 8080", "::1/128 9000"),
        *("127.0.0.53/32 53", "fe80::1/128 53", "10.9.0.0/16"),
    ]
    alone = NetworkPolicy("none", resolvers_file=file).rules(tmp_path, {}, {}, memory_mb=64)
    assert (alone.allowed, alone.allows_others) == ([], False)
    assert (alone.connections_max, rules.connections_max) == (4_096, 16_384)


def test_failed_lookup_of_the_api_is_logged_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Any] = [OSError("no answer"), [(0, 0, 0, "", ("10.0.0.9", 0))]]

    def look_up(*_: Any, **__: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    policy = NetworkPolicy("none")
    variables = {"HOSTING_API_URL": "http://api.internal:8080"}
    assert policy.rules(tmp_path, {}, variables, memory_mb=64).allowed == []
    assert "api.internal" in capsys.readouterr().out
    for _ in range(2):
        rules = policy.rules(tmp_path, {}, variables, memory_mb=64)
        assert rules.allowed == ["10.0.0.9/32 8080"]
