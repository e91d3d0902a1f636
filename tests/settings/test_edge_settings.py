from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyservice.settings import SettingsError, load, lobby_hosts_without_certificate
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
