from __future__ import annotations

from typing import Literal, NamedTuple

from pyservice.dataplane.native import LeasedPort, NativePlayerAddresses

OwnerKind = Literal["lobby", "server"]


class PlayerAddress(NamedTuple):
    """The public address of one port. `number` is None if the port is a range of port numbers."""

    hostname: str
    number: int | None
    port_range: tuple[int, int] | None
    is_tls: bool


class PlayerAddresses:
    def __init__(
        self,
        job_domain: str | None = None,
        advertised: str = "127.0.0.1",
        node: str = "127.0.0.1",
        *,
        has_certificate: bool = False,
    ) -> None:
        """`job_domain` is the domain of player host names. None is local mode: every port has its
        own number at the advertised address.

        `has_certificate` is for local mode: without a certificate, https and tcp_tls are served
        without TLS.
        """
        self.job_domain = job_domain
        self.native = NativePlayerAddresses(job_domain, advertised, node, has_certificate)

    def address_of(
        self, port: LeasedPort, lease_owner: bytes, region: str, label: OwnerKind = "lobby"
    ) -> PlayerAddress:
        return PlayerAddress(*self.native.address_of(port, lease_owner, region, label))
