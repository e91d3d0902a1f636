"""Client address of a request, from its headers and its peer (docs/reference/wire.md#client-address)."""

from __future__ import annotations

from pyservice.edge import forwarding_headers
from pyservice.edge.http_messages import Request
from pyservice.transport import client_address
from pyservice.transport.client_address import Address, TrustedProxies


class ClientAddresses:
    """Resolves clients of one HTTP server. Only trusted proxies may set forwarded addresses."""

    def __init__(self, proxies: TrustedProxies, *, is_internal: bool) -> None:
        self._proxies = proxies
        self._is_internal = is_internal

    def of(self, request: Request) -> tuple[Address, tuple[float, float] | None]:
        fields, peer = request.headers, request.peer
        if self._is_internal:
            return forwarding_headers.client_of(fields) or peer, None
        said = fields.get(b"x-forwarded-for", b"").decode("latin-1")
        if request.is_fronted:
            # One address, because edge-guard replaces the header.
            client = client_address.parse_address(said) or peer
        else:
            client = self._proxies.client(peer, said or None)
        if not self._proxies.trusts(peer):
            return client, None
        return client, client_address.coordinates(fields.get(b"x-coords", b"").decode("latin-1"))
