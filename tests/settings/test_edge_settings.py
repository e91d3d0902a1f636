from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyservice.settings import (
    SettingsError,
    ephemeral_public_ports,
    load,
    lobby_hosts_without_certificate,
)
from pyservice.settings.sections import InheritedSocket, ListenAddress

NAMES = {"main": "example.com", "job": "job.example.com"}


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, Any]:
    for name in ("cert", "key"):
        (tmp_path / name).touch()
    return {
        "server_names": ["a", "example.com"],
        "cert": str(tmp_path / "cert"),
        "key": str(tmp_path / "key"),
    }


def problems_of(**edge: Any) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        load({"domains": NAMES, "edge": edge}, environ={})
    return {problem.name: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    "edge",
    [
        {"http": "0.0.0.0:80", "https": "[::]:443"},
        {"http": "fd:3", "https": "fd:4"},
        {"http": "fd:3", "https": "0.0.0.0:443"},
        {"http": "0.0.0.0:8000", "is_fronted": True},
        {"is_fronted": True},
    ],
)
def test_lobby_names_accept_ports_80_and_443_or_a_front(
    edge: dict[str, Any], certificate: dict[str, Any]
) -> None:
    settings = load({"domains": NAMES, "edge": {**edge, "certificates": [certificate]}}, environ={})
    assert settings.domains.job == NAMES["job"]
    assert settings.edge.is_fronted == edge.get("is_fronted", False)


@pytest.mark.parametrize(
    "edge", [{}, {"http": "fd:3"}, {"http": "0.0.0.0:80", "https": "0.0.0.0:8443"}]
)
def test_missing_edge_ports_fail_the_start(
    edge: dict[str, Any], certificate: dict[str, Any]
) -> None:
    problems = problems_of(**edge, certificates=[certificate])
    assert list(problems) == ["domains.job"]
    assert "needs edge-guard at ports 80 and 443" in problems["domains.job"]


def test_all_tls_problems_are_reported(tmp_path: Path, certificate: dict[str, Any]) -> None:
    assert problems_of(is_fronted=True, https="0.0.0.0:443") == {
        "edge.https": "needs edge.certificates"
    }
    absent = {**certificate, "cert": str(tmp_path / "none"), "key": str(tmp_path / "nothing")}
    problems = problems_of(is_fronted=True, certificates=[certificate, absent])
    assert list(problems) == ["edge.certificates.1.cert", "edge.certificates.1.key"]


def test_host_without_certificate_is_a_problem_unless_another_proxy_ends_tls(
    certificate: dict[str, Any],
) -> None:
    domains = {"main": "api.example", "cdn": "sites.example", "job": "play.example"}
    edge = {"http": "0.0.0.0:80", "https": "0.0.0.0:443"}
    settings = {"domains": domains, "cdn_url": "https://files.example"}
    uncovered = {**certificate, "server_names": ["*.example"]}
    with pytest.raises(SettingsError) as caught:
        load({**settings, "edge": {**edge, "certificates": [uncovered]}}, environ={})
    problems = {problem.name: problem.message for problem in caught.value.problems}
    assert list(problems) == ["domains.cdn"]
    assert problems["domains.cdn"].startswith(
        "*.sites.example is in no edge.certificates.server_names"
    )
    with_proxy = {**edge, "is_fronted": True, "certificates": [uncovered]}
    load({**settings, "edge": with_proxy}, environ={})
    covered = {**certificate, "server_names": ["*.example", "*.sites.example"]}
    loaded = load({**settings, "edge": {**edge, "certificates": [covered]}}, environ={})
    hosts = ["local.play.example", "*.lobby.local.play.example", "*.server.local.play.example"]
    assert lobby_hosts_without_certificate(loaded) == hosts


def test_socket_serves_one_listener(certificate: dict[str, Any]) -> None:
    problems = problems_of(http="fd:3", https="fd:3", certificates=[certificate])
    assert problems == {"edge.https": "fd:3 is edge.http: hand over another socket"}


def test_required_proxy_header_needs_proxies() -> None:
    assert load({}, environ={}).edge.proxy_header == "optional"
    load({"edge": {"proxies": ["10.0.0.0/8"], "proxy_header": "required"}}, environ={})
    assert problems_of(is_fronted=True, proxy_header="required") == {
        "edge.proxy_header": "needs edge.proxies: only proxies in them must send the header"
    }
    assert list(problems_of(is_fronted=True, proxy_header="always")) == ["edge.proxy_header"]


@pytest.mark.parametrize("value", ["fd:2", "fd:", "fd:x", "fd:-3", "80", "nowhere"])
def test_invalid_listener_is_rejected(value: str) -> None:
    assert list(problems_of(is_fronted=True, http=value)) == ["edge.http"]


@pytest.mark.parametrize(
    ("value", "expected"), [("fd:3", InheritedSocket(3)), ("[::1]:80", ListenAddress("::1", 80))]
)
def test_edge_settings_are_read_from_every_source(
    value: str, expected: object, tmp_path: Path
) -> None:
    path = tmp_path / "service.toml"
    path.write_text(f'[edge]\nhttp = "{value}"\n')
    assert load({}, path, {}).edge.http == expected
    assert load({}, environ={"PYSERVICE_EDGE__HTTP": value}).edge.http == expected
    assert str(expected) == value


def test_public_ports_are_a_range_of_at_least_100() -> None:
    loaded = load({"edge": {"public_ports": "40000-40099"}}, environ={})
    assert loaded.edge.public_ports == (40_000, 40_099)
    problems = problems_of(public_ports="40000-40098")
    assert problems["edge.public_ports"].startswith("has 99 ports: give at least 100, ")
    assert "must be two ports" in problems_of(public_ports="1000-2000")["edge.public_ports"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"http": "127.0.0.1:40010"}, ["http"]),
        ({"grpc": "0.0.0.0:40010"}, ["grpc"]),
        ({"http": "127.0.0.2:40010"}, []),
        ({"edge": {"http": "127.0.0.1:40011"}}, ["edge.http"]),
        ({"edge": {"bind": "0.0.0.0"}, "metrics": "127.0.0.2:40099"}, ["metrics"]),
        ({"http": "127.0.0.1:39999", "cdn": "127.0.0.1:40100"}, []),
    ],
)
def test_public_ports_contain_no_listener_of_the_same_address(
    settings: dict[str, Any], names: list[str]
) -> None:
    edge = {**settings.get("edge", {}), "public_ports": "40000-40099"}
    try:
        load({**settings, "edge": edge}, environ={})
        problems = []
    except SettingsError as error:
        problems = error.problems
    assert [problem.name for problem in problems] == ["edge.public_ports"] * len(names)
    for problem, name in zip(problems, names, strict=True):
        assert f"the port of {name}: " in problem.message


@pytest.mark.parametrize(
    ("kernel", "reserved", "common"),
    [
        ("32768\t60999\n", "\n", "40000-40099"),
        ("32768\t60999\n", "8080,40000-40049\n", "40050-40099"),
        ("32768\t60999\n", "40000-40099\n", None),
        ("50000\t60999\n", "\n", None),
    ],
)
def test_public_ports_of_outgoing_connections_are_a_warning(
    kernel: str, reserved: str, common: str | None, tmp_path: Path
) -> None:
    (tmp_path / "ip_local_port_range").write_text(kernel)
    (tmp_path / "ip_local_reserved_ports").write_text(reserved)
    loaded = load({"edge": {"public_ports": "40000-40099"}}, environ={})
    warning = ephemeral_public_ports(loaded, tmp_path)
    assert (warning is None) == (common is None)
    assert f"({common})" in (warning or "(None)")
