"""Checks of tokens by the namespaces of an index, as the matchmaker makes them."""

from __future__ import annotations

from functools import cache

from pyservice import _native
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.player_addresses import PlayerAddresses
from pyservice.errors import ServiceError
from pyservice.transport.rate_limits import Limits


@cache
def _engine() -> _native.Engine:
    return _native.Engine.open(None, mac_keys=[(1, b"k" * 32)], current_key=1, hash_key=b"h" * 32)


def is_revoked(namespaces: NamespaceIndex, namespace: bytes, token_id: bytes) -> bool:
    """Returns whether the namespace is known and refuses tokens with this id."""
    engine = _engine()
    matchmaker = _native.Matchmaker(
        engine, namespaces.native, [], PlayerAddresses().native, Limits().of_clients
    )
    token = engine.public_token(namespace, token_id)
    try:
        matchmaker.caller("find", f"Bearer {token}", None, bytes(4))
    except ServiceError as error:
        return error.code == "TOKEN_REVOKED"
    return False
