from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pyservice.kubernetes.cluster_access import (
    ClusterAccess,
    NoAccess,
    kubeconfig_access,
    service_account_access,
)
from tests.support.certificates import HOST, Certificates

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    certificates.renew()
    return certificates


@pytest.fixture
def account(tmp_path: Path, certificates: Certificates) -> Path:
    """Folder of a service account."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(certificates.authority.read_bytes())
    (folder / "namespace").write_text("games\n")
    (folder / "token").write_text("first-token\n")
    return folder


def kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    """Writes a kubeconfig, with a second context that is not the current one."""
    path = folder / "config"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "ours",
        "contexts": [
            {"name": "theirs", "context": {"cluster": "other", "user": "other"}},
            {"name": "ours", "context": {"cluster": "k", "user": "u", "namespace": "games"}},
        ],
        "clusters": [
            {"name": "other", "cluster": {"server": "https://wrong.example.com"}},
            {"name": "k", "cluster": {"server": f"https://{HOST}:6443/", **cluster}},
        ],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path


def replace(path: Path, content: bytes) -> None:
    """Replaces a file by another one, as a kubelet does."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def issue_client_certificate(authority: Certificates, folder: Path) -> bytes:
    """Writes a certificate for a client, and its key, into a folder. Returns it in DER."""
    key, certificate = folder / "client.key", folder / "client.pem"
    options = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-subj", "/CN=service"]
    request = subprocess.run(
        ["openssl", "req", "-new", *options], capture_output=True, check=True
    ).stdout
    signer = ["-CA", str(authority.authority), "-CAkey", str(authority.folder / "ca.key")]
    subprocess.run(
        ["openssl", "x509", "-req", *signer, "-CAcreateserial", "-out", str(certificate)],
        input=request,
        capture_output=True,
        check=True,
    )
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


def handshake(access: ClusterAccess, certificates: Certificates) -> bytes | None:
    """Connects to a server with `certificates`. Returns the certificate of the client in DER.

    Raises ssl.SSLError.
    """
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(certificates.cert, certificates.key)
    server_context.load_verify_locations(certificates.authority)
    # With TLS 1.3 a client learns of a refused certificate only after its handshake.
    server_context.maximum_version = ssl.TLSVersion.TLSv1_2
    server_context.verify_mode = ssl.CERT_OPTIONAL
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    context = access.tls()
    assert context is not None
    client = context.wrap_bio(to_client, to_server, server_hostname=HOST)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    return server.getpeercert(binary_form=True)


def test_service_account_has_address_namespace_and_token(
    account: Path, certificates: Certificates
) -> None:
    access = service_account_access(IN_POD, account)
    assert (access.url, access.namespace) == ("https://10.96.0.1:6443", "games")
    assert access.headers() == {"Authorization": "Bearer first-token"}
    assert handshake(access, certificates) is None, "its server is trusted without a certificate"


def test_address_of_version_6_is_bracketed(account: Path) -> None:
    access = service_account_access({"KUBERNETES_SERVICE_HOST": "fd00::1"}, account)
    assert access.url == "https://[fd00::1]:443"


def test_rotated_token_is_read_again(account: Path) -> None:
    access = service_account_access(IN_POD, account)
    replace(account / "token", b"second-token")
    assert access.headers() == {"Authorization": "Bearer second-token"}


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"two\nlines"])
def test_unusable_new_token_keeps_the_earlier_one(account: Path, content: bytes) -> None:
    access = service_account_access(IN_POD, account)
    replace(account / "token", content)
    assert access.headers() == {"Authorization": "Bearer first-token"}
    replace(account / "token", b"third-token")
    assert access.headers() == {"Authorization": "Bearer third-token"}


def test_outside_of_a_pod_the_remedy_is_named(account: Path, tmp_path: Path) -> None:
    for environment, folder in (({}, account), (IN_POD, tmp_path / "missing")):
        with pytest.raises(NoAccess, match=r"set kubernetes\.kubeconfig"):
            service_account_access(environment, folder)


def test_kubeconfig_with_inline_certificates_authenticates(
    tmp_path: Path, certificates: Certificates
) -> None:
    expected = issue_client_certificate(certificates, tmp_path)
    encoded = {
        name: base64.b64encode(path.read_bytes()).decode()
        for name, path in (
            ("certificate-authority-data", certificates.authority),
            ("client-certificate-data", tmp_path / "client.pem"),
            ("client-key-data", tmp_path / "client.key"),
        )
    }
    authority = {"certificate-authority-data": encoded.pop("certificate-authority-data")}
    access = kubeconfig_access(kubeconfig(tmp_path, encoded, **authority))
    assert (access.url, access.namespace) == (f"https://{HOST}:6443", "games")
    assert access.headers() == {}
    assert handshake(access, certificates) == expected


def test_kubeconfig_finds_files_beside_it_and_reads_replaced_ones(
    tmp_path: Path, certificates: Certificates
) -> None:
    first = issue_client_certificate(certificates, tmp_path)
    (tmp_path / "token").write_text("from-a-file")
    (tmp_path / "ca.pem").write_bytes(certificates.authority.read_bytes())
    user = {
        "tokenFile": "token",
        "token": "inline-token",
        "client-certificate": "client.pem",
        "client-key": str(tmp_path / "client.key"),
    }
    authority = {"certificate-authority": "ca.pem"}
    access = kubeconfig_access(kubeconfig(tmp_path, user, **authority))
    assert access.headers() == {"Authorization": "Bearer from-a-file"}
    assert handshake(access, certificates) == first
    second = issue_client_certificate(certificates, tmp_path)
    assert handshake(access, certificates) == second != first
    replace(tmp_path / "client.key", b"half of a k")
    assert handshake(access, certificates) == second, "an unusable key keeps the earlier pair"
    third = issue_client_certificate(certificates, tmp_path)
    assert handshake(access, certificates) == third != second
    other = Certificates(tmp_path / "others")
    other.renew()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(access, other)


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"exec": {"command": "aws"}}, r"user u runs a program for its credentials \(exec\)"),
        ({"auth-provider": {"name": "gcp"}}, "user u has an auth-provider"),
        ({"username": "admin", "password": "x"}, "user u has a user name and password"),
        ({"as": "root", "token": "x"}, "user u acts as another user"),
        ({"client-certificate": "missing.pem"}, "both client-certificate and client-key"),
        ({"client-certificate-data": "!", "client-key-data": "!"}, "is not base64"),
        ({"tokenFile": "missing"}, "missing cannot be read: No such file"),
    ],
)
def test_unusable_user_is_refused_with_a_sentence(
    tmp_path: Path, user: dict[str, Any], words: str
) -> None:
    with pytest.raises(NoAccess, match=words):
        kubeconfig_access(kubeconfig(tmp_path, user))


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"insecure-skip-tls-verify": True}, "set certificate-authority"),
        ({"proxy-url": "http://proxy"}, "proxy-url is not supported"),
        ({"server": "10.0.0.1"}, "the cluster has no server, such as https"),
        ({"server": "http://10.0.0.1"}, "credentials would be readable: use https"),
        ({"certificate-authority-data": "YWJj"}, "is not a certificate"),
    ],
)
def test_unusable_cluster_is_refused_with_a_sentence(
    tmp_path: Path, cluster: dict[str, Any], words: str
) -> None:
    with pytest.raises(NoAccess, match=words):
        kubeconfig_access(kubeconfig(tmp_path, {"token": "x"}, **cluster))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "is not valid YAML"),
        ("- 1", "is not a kubeconfig"),
        ("kind: Config", "has no current-context"),
        ("current-context: a", "has no context 'a'"),
        ("current-context: a\ncontexts: [{name: a, context: {cluster: c}}]", "no cluster 'c'"),
    ],
)
def test_file_that_is_no_kubeconfig_is_refused_with_a_sentence(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(NoAccess, match=words):
        kubeconfig_access(path)


def test_tls_server_name_is_the_name_that_is_verified(
    tmp_path: Path, certificates: Certificates
) -> None:
    authority = {"certificate-authority": str(certificates.authority)}
    path = kubeconfig(tmp_path, {"token": "x"}, **authority, **{"tls-server-name": HOST})
    assert kubeconfig_access(path).server_name == HOST
