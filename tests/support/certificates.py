"""Certificates of tests, from an authority of their own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyservice.edge_guard.process import EDGE_GUARD_BINARY
from tests.support.waiting import PATIENCE_S

HOST = "api.example.com"


@dataclass(frozen=True)
class Certificates:
    """Folder with an authority and one certificate for `HOST`."""

    folder: Path

    @property
    def cert(self) -> Path:
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def settings(self) -> dict[str, str]:
        return {"cert": str(self.cert), "key": str(self.key)}

    def renew(self, *hosts: str) -> bytes:
        """Writes a new certificate of the same authority, for `HOST` by default. Returns it in DER."""
        command = [str(EDGE_GUARD_BINARY), "ca", str(self.folder), *(hosts or [HOST])]
        subprocess.run(command, check=True)
        return ssl.PEM_cert_to_DER_cert(self.cert.read_text())

    def expire(self, *hosts: str) -> None:
        """Writes a certificate of the same authority that expired yesterday."""
        self.renew(*hosts)
        names = ",".join(f"DNS:{host}" for host in hosts or [HOST])
        request = subprocess.run(
            ["openssl", "req", "-new", "-key", str(self.key), "-subj", "/CN=expired"],
            capture_output=True,
            check=True,
        ).stdout
        extensions = self.folder / "extensions"
        extensions.write_text(f"subjectAltName={names}")
        authority = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", extensions)
        subprocess.run(
            ["openssl", "x509", "-req", "-days", "-1", *authority, "-out", self.cert],
            cwd=self.folder,
            input=request,
            capture_output=True,
            check=True,
        )

    def trust(self, *protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context


@contextlib.contextmanager
def tls_connection(
    address: str, context: ssl.SSLContext, name: str = HOST
) -> Iterator[ssl.SSLSocket]:
    """Connects to `address` as a client of `name`. Raises OSError if the handshake fails."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), PATIENCE_S) as connection,
        context.wrap_socket(connection, server_hostname=name) as stream,
    ):
        yield stream


def served_certificate(address: str, context: ssl.SSLContext, name: str = HOST) -> bytes:
    """Returns the certificate of a server in DER."""
    with tls_connection(address, context, name) as stream:
        certificate = stream.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate
