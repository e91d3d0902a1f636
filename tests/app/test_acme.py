"""Certificates from a real ACME directory: order, storage, renewal, and a directory that is down."""

from __future__ import annotations

import json
import re
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.acme_server import AcmeServer, acme_server
from tests.support.certificates import HOST, served_certificate
from tests.support.data_plane_service import MakeService, Service
from tests.support.waiting import until

pytestmark = pytest.mark.full
OTHER = "play.example.com"


@pytest.fixture
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AcmeServer]:
    with acme_server(tmp_path / "pebble", **getattr(request, "param", {})) as server:
        yield server


def started(make_service: MakeService, directory: AcmeServer, *domains: str) -> Service:
    acme = {**directory.settings, "domains": list(domains or [HOST])}
    return make_service(settings={"tls": {"acme": acme}}).start()


def events(service: Service, name: str) -> list[dict[str, Any]]:
    lines = (service.folder / "log").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def certificate_of(service: Service, trust: ssl.SSLContext, name: str = HOST) -> bytes | None:
    try:
        return served_certificate(service.addresses["http"], trust, name)
    except OSError:
        return None


def start_directory(directory: AcmeServer, service: Service) -> ssl.SSLContext:
    """Starts the directory beside a running service. Returns what its clients trust."""
    directory.start(int(service.addresses["http"].rpartition(":")[2]))
    return ssl.create_default_context(cadata=directory.issuer())


def test_order_succeeds_once_the_directory_is_up(
    make_service: MakeService, directory: AcmeServer
) -> None:
    service = started(make_service, directory, HOST, OTHER)
    until(lambda: events(service, "certificate not ordered"))
    problem = events(service, "certificate not ordered")[0]["problem"]
    pattern = r"https://\S+/dir: .*Connection refused.*; next order after 5 s$"
    assert re.match(pattern, problem), problem
    assert certificate_of(service, ssl.create_default_context()) is None
    trust = start_directory(directory, service)
    until(lambda: certificate_of(service, trust))
    for listener in ("http", "grpc"):
        for name in (HOST, OTHER):
            assert served_certificate(service.addresses[listener], trust, name)
    until(lambda: events(service, "certificate ordered"))
    for path in (service.data_dir / "acme").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    names = {path.name for path in (service.data_dir / "acme").glob("*/*")}
    assert names == {"account.json", "certificate.pem"}


def test_stored_certificate_is_served_without_the_directory(
    make_service: MakeService, directory: AcmeServer
) -> None:
    service = started(make_service, directory)
    trust = start_directory(directory, service)
    until(lambda: certificate_of(service, trust))
    stored = certificate_of(service, trust)
    directory.stop()
    assert service.stop() == 0
    problems = len(events(service, "certificate not ordered"))
    service.start()
    assert certificate_of(service, trust) == stored
    assert len(events(service, "certificate not ordered")) == problems


@pytest.mark.parametrize("directory", [{"validity_s": 15}], indirect=True)
def test_certificate_is_renewed(make_service: MakeService, directory: AcmeServer) -> None:
    service = started(make_service, directory)
    trust = start_directory(directory, service)
    until(lambda: certificate_of(service, trust))
    first = certificate_of(service, trust)
    until(lambda: certificate_of(service, trust) not in (None, first))
    # A new installation of the directory does not know the account.
    directory.stop()
    new_trust = start_directory(directory, service)
    until(lambda: certificate_of(service, new_trust))
    problems = [event["problem"] for event in events(service, "certificate not ordered")]
    assert any("accountDoesNotExist" in problem for problem in problems), problems


def test_refused_validation_is_named(make_service: MakeService, directory: AcmeServer) -> None:
    directory.settings  # noqa: B018 - makes the certificate of the directory
    directory.start(9)
    service = started(make_service, directory)
    # On a busy machine, an earlier attempt can fail because the directory is slow.
    pattern = re.compile(rf"/dir: {HOST}: .*Failed to connect to .*tls-alpn-01")
    until(
        lambda: [
            event
            for event in events(service, "certificate not ordered")
            if pattern.search(event["problem"])
        ]
    )
