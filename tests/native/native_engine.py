"""An engine of the native module, with fixed keys, and requests to its matchmaker."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import orjson

from pyservice import _native
from pyservice.calls import Call, EncodedRequest
from pyservice.ids import format_uuid

NAMESPACE, VERSION = b"n" * 16, b"v" * 16
SLOTS_MAX = 100_000


def open_engine(journal_dir: Path | None, **options: Any) -> _native.Engine:
    return _native.Engine.open(
        None if journal_dir is None else str(journal_dir),
        mac_keys=[(1, b"k" * 32)],
        current_key=1,
        hash_key=b"h" * 32,
        **options,
    )


@dataclass(frozen=True)
class Duel:
    name: str = "duel"
    max_players: int = SLOTS_MAX
    max_players_direct: int = SLOTS_MAX
    max_players_party: int = SLOTS_MAX
    is_find_enabled: bool = True
    is_taggable: bool = True
    is_listable: bool = True
    is_max_players_dynamic: bool = False
    regions: None = None
    create_publicities: frozenset[str] = frozenset()
    port_ranges: dict[str, bool] = field(default_factory=dict)


class Requests:
    """Requests of players and lobby servers, without rate limits. Errors are raised."""

    def __init__(self, engine: _native.Engine) -> None:
        self._engine = engine
        self._namespaces = _native.Namespaces()
        self._known: set[bytes] = set()
        buckets = [_native.Buckets(0, 1, 1) for _ in range(5)]
        self.native = _native.Matchmaker(
            engine,
            self._namespaces,
            [("local", "Self-hosted", "Local", 0.0, 0.0)],
            _native.PlayerAddresses(None, "127.0.0.1", "local", False),
            (buckets[0], buckets[1], buckets[2], buckets[3], buckets[4]),
        )

    def of_player(
        self, operation: str, namespace: bytes = NAMESPACE, **fields: Any
    ) -> EncodedRequest:
        if namespace not in self._known:
            self._known.add(namespace)
            self._namespaces.put(
                _native.Namespace(
                    namespace,
                    label="game/live",
                    version=VERSION,
                    group=b"g" * 16,
                    source_limit=1_000_000,
                    needs_admission=False,
                    modes=[Duel()],
                    hosts=[],
                    service_tokens=[],
                    revoked=[],
                )
            )
        return _request(operation, self._engine.public_token(namespace, b"t" * 16), fields)

    def decide(self, request: EncodedRequest) -> _native.Decision:
        decision = self.native.decide(request)
        if decision.error is not None:
            raise decision.error
        assert decision.need is None
        return decision

    def join(self, lobby: bytes, namespace: bytes = NAMESPACE, **fields: Any) -> list[str]:
        """Returns the token of each player."""
        request = self.of_player("join", namespace, lobby_id=format_uuid(lobby), **fields)
        reply = self.decide(request).reply
        assert reply is not None
        response = orjson.loads(reply.json())
        return [one["token"] for one in response.get("players") or [response["player"]]]

    def of_server(self, operation: str, lobby_token: str, **fields: Any) -> int:
        """Returns the LSN."""
        return self.decide(_request(operation, lobby_token, fields)).wait


def _request(operation: str, token: str, fields: dict[str, Any]) -> EncodedRequest:
    client = ip_address("127.0.0.1")
    call = Call("0" * 32, client.packed, f"Bearer {token}", client=client)
    if operation == "list":
        return EncodedRequest(operation, call, "target", path="/matchmaker/lobbies")
    return EncodedRequest(operation, call, "json", orjson.dumps(fields))


def attach(
    engine: _native.Engine,
    slots: int = 4,
    namespace: bytes = NAMESPACE,
    player_token_ttl_ms: int = 120_000,
) -> tuple[bytes, str]:
    """Returns a ready lobby and its token."""
    lobby, token, _ = engine.attach(
        namespace,
        VERSION,
        "duel",
        "local",
        [("game", "127.0.0.1", 7777, False)],
        max_players=(slots, slots, slots),
        player_token_ttl_ms=player_token_ttl_ms,
        heartbeat_timeout_ms=0,
        heartbeat_grace_ms=10_000,
        is_join_enabled=True,
        create_ts_ms=0,
        lobby_count_max=1_000_000,
    )
    Requests(engine).of_server("ready", token)
    return lobby, token
