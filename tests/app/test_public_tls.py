"""TLS of the HTTP and gRPC listeners with certificate files: requests, reload at SIGHUP."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.support.certificates import HOST, Certificates, served_certificate, tls_connection
from tests.support.data_plane_service import MakeService
from tests.support.supervised_service import SupervisedService
from tests.support.waiting import PATIENCE_S, until

SNI = {"sni_hostname": HOST}
"""Makes httpx check the certificate for this name."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    certificates.renew()
    return certificates


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[SupervisedService]:
    settings = {"tls": certificates.settings}
    service = SupervisedService(tmp_path_factory.mktemp("tls"), settings)
    service.start()
    yield service
    service.close()


MakeSupervised = Callable[[Mapping[str, Any]], SupervisedService]


@pytest.fixture
def make_supervised(tmp_path: Path) -> Iterator[MakeSupervised]:
    with contextlib.ExitStack() as stack:

        def make(settings: Mapping[str, Any]) -> SupervisedService:
            supervised = SupervisedService(tmp_path, settings)
            stack.callback(supervised.close)
            return supervised

        yield make


def https(service: SupervisedService, certificates: Certificates, token: str) -> httpx.Client:
    base_url = f"https://{service.addresses['http']}"
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(
        base_url=base_url, verify=certificates.trust(), headers=headers, timeout=PATIENCE_S
    )


def test_http_requests_of_both_planes_are_answered(
    service: SupervisedService, certificates: Certificates
) -> None:
    with https(service, certificates, service.public_token()) as client:
        assert client.get("/matchmaker/regions", extensions=SNI).status_code == 200
    ready = service.ready()
    with https(
        service, certificates, Path(ready["cloud_token_file"]).read_text().strip()
    ) as client:
        assert (
            client.get(f"/cloud/groups/{ready['owner_group_id']}", extensions=SNI).status_code
            == 200
        )
        links = client.get("/cloud/bootstrap", extensions=SNI).json()
    assert f"https://{service.addresses['http']}" in json.dumps(links)


def test_grpc_calls_are_answered(service: SupervisedService, certificates: Certificates) -> None:
    credentials = grpc.ssl_channel_credentials(certificates.authority.read_bytes())
    options = [("grpc.ssl_target_name_override", HOST)]
    metadata = (("authorization", f"Bearer {service.public_token()}"),)
    with grpc.secure_channel(service.addresses["grpc"], credentials, options) as channel:
        call = channel.unary_unary(
            "/hosting.v1.Matchmaker/ListRegions",
            request_serializer=pb.ListRegionsRequest.SerializeToString,
            response_deserializer=pb.ListRegionsResponse.FromString,
        )
        response = call(pb.ListRegionsRequest(), metadata=metadata, timeout=PATIENCE_S)
    assert [region.region_id for region in response.regions] == ["local"]


@pytest.mark.parametrize(
    ("listener", "offered", "agreed"),
    [
        ("http", ["h2", "http/1.1"], "h2"),
        ("http", ["http/1.1"], "http/1.1"),
        ("grpc", ["h2"], "h2"),
    ],
)
def test_protocol_is_agreed_on(
    service: SupervisedService,
    certificates: Certificates,
    listener: str,
    offered: list[str],
    agreed: str,
) -> None:
    context = certificates.trust(*offered)
    with tls_connection(service.addresses[listener], context) as stream:
        assert stream.selected_alpn_protocol() == agreed
        assert stream.version() == "TLSv1.3"


@pytest.mark.parametrize("listener", ["http", "grpc"])
def test_plain_request_closes_the_connection(service: SupervisedService, listener: str) -> None:
    host, _, port = service.addresses[listener].rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(b"GET /matchmaker/regions HTTP/1.1\r\nhost: a\r\n\r\n")
        received = b""
        while data := connection.recv(4096):
            received += data
    assert b"HTTP" not in received


def is_served(address: str, context: ssl.SSLContext, certificate: bytes) -> bool:
    return served_certificate(address, context) == certificate


def certificate_end(service: SupervisedService) -> float:
    for line in service.probe("/metrics").text.splitlines():
        if line.startswith("hosting_certificate_end_timestamp_seconds "):
            return float(line.split()[1])
    raise AssertionError("no certificate in the metrics")


def test_sighup_gives_new_connections_the_new_certificate(
    service: SupervisedService, certificates: Certificates
) -> None:
    context = certificates.trust()
    addresses = [service.addresses[name] for name in ("http", "grpc")]
    with https(service, certificates, service.public_token()) as client:
        assert client.get("/matchmaker/regions", extensions=SNI).status_code == 200
        new = certificates.renew()
        service.signal(signal.SIGHUP)
        for address in addresses:
            until(partial(is_served, address, context, new))
        # The open connection goes on.
        assert client.get("/matchmaker/regions", extensions=SNI).status_code == 200
    assert certificate_end(service) > 1_700_000_000


def test_wrong_files_leave_the_old_certificate(
    service: SupervisedService, certificates: Certificates
) -> None:
    context, address = certificates.trust(), service.addresses["http"]
    old, key = served_certificate(address, context), certificates.key.read_text()
    try:
        certificates.key.write_text("no key")
        assert str(certificates.key) in refused_reload(service)
        certificates.key.unlink()
        assert f"{certificates.key} cannot be read" in refused_reload(service)
        assert served_certificate(address, context) == old
    finally:
        certificates.key.write_text(key)
    new = certificates.renew()
    service.signal(signal.SIGHUP)
    until(lambda: served_certificate(address, context) == new)


def refused_reload(service: SupervisedService) -> str:
    """Sends SIGHUP. Returns the problem that the log names."""
    before = len(service.events("settings not reloaded"))
    service.signal(signal.SIGHUP)
    until(lambda: len(service.events("settings not reloaded")) > before)
    [event] = service.events("settings not reloaded")[before:]
    return str(event["problem"])


@pytest.mark.full
def test_sighup_refuses_a_certificate_that_clients_reject(
    tmp_path: Path, make_supervised: MakeSupervised
) -> None:
    certificates = Certificates(tmp_path / "certificates")
    good = certificates.renew()
    supervised = make_supervised({"tls": certificates.settings})
    config = supervised.folder / "service.toml"
    config.write_text(f'public_url = "https://{HOST}"\n')
    supervised.start("--config", str(config))
    context, address = certificates.trust(), supervised.addresses["http"]
    for write, problem in (
        (certificates.expire, "expired on 20"),
        (lambda: certificates.renew("other.example"), f"has no name {HOST}; it has other.example"),
    ):
        write()
        # The change of another setting is not taken either.
        config.write_text(f'public_url = "https://{HOST}"\n[quotas]\ngames = 7\n')
        assert problem in refused_reload(supervised)
        assert served_certificate(address, context) == good
    assert not supervised.events("reloaded")
    new = certificates.renew()
    supervised.signal(signal.SIGHUP)
    until(lambda: served_certificate(address, context) == new)
    until(lambda: len(supervised.events("reloaded")) == 2)


@pytest.mark.parametrize("role", [(), ("--role", "data")], ids=["all", "data"])
def test_start_with_an_expired_certificate_warns_and_serves(
    tmp_path: Path, make_supervised: MakeSupervised, role: tuple[str, ...]
) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.expire()
    supervised = make_supervised({"tls": certificates.settings})
    supervised.start(*role)
    [warning, *_] = supervised.events("configuration warning")
    assert warning["problem"].startswith(f"tls: {certificates.cert} expired on 20")
    assert warning["problem"].endswith("; clients reject it")
    context, address = certificates.trust(), supervised.addresses["http"]
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        served_certificate(address, context)
    assert certificate_end(supervised) < time.time()
    # The alert of the certificate fires by this metric. SIGHUP refuses the files until they are renewed.
    assert "expired on 20" in refused_reload(supervised)
    new = certificates.renew()
    supervised.signal(signal.SIGHUP)
    until(lambda: certificate_end(supervised) > time.time())
    assert served_certificate(address, context) == new


@pytest.mark.full
@pytest.mark.parametrize("broken", ["cert", "key"])
def test_wrong_file_fails_the_start_and_the_check(
    make_service: MakeService, tmp_path: Path, broken: str
) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.renew()
    Path(certificates.settings[broken]).write_text("-----BEGIN CERTIFICATE-----\n")
    service = make_service(settings={"tls": certificates.settings})
    process = service.spawn()
    assert process.wait(PATIENCE_S) == 1
    assert certificates.settings[broken] in service.log()
    flags = [f"tls.{name}={path}" for name, path in certificates.settings.items()]
    checked = service.command("check-config", "--set", flags[0], "--set", flags[1])
    assert checked.returncode == 1
    assert checked.stderr.startswith(f"pyservice: tls: {certificates.settings[broken]}: ")


def test_key_of_another_certificate_is_a_problem(make_service: MakeService, tmp_path: Path) -> None:
    first, second = (Certificates(tmp_path / name) for name in ("first", "second"))
    first.renew()
    second.renew()
    flags = ["--set", f"tls.cert={first.cert}", "--set", f"tls.key={second.key}"]
    checked = make_service().command("check-config", *flags)
    problem = f"pyservice: tls: {second.key}: is not the key of {first.cert}\n"
    assert (checked.returncode, checked.stderr) == (1, problem)
