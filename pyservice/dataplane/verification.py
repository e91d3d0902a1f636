"""The game's own server is asked whether a user may find, join or create (decisions 7).

Owns the body of that request and what the status of its answer means. Whether anybody is asked is
in `gates`, how it is reached in `outbound`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson
from yarl import URL

from pyservice.dataplane.engine import Lobby
from pyservice.dataplane.gates import VerificationRule
from pyservice.dataplane.outbound import Outbound, Unanswered
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.observability.logging import get_logger

_log = get_logger("verification")

_JSON: Final = {"Content-Type": "application/json"}

Kind = Literal["find", "join", "create"]


@dataclass(frozen=True, slots=True)
class Question:
    """What the game's server is told besides the game mode. JSON texts are handed on as they are."""

    kind: Kind
    tenant: bytes
    """On whose account is asked; not told."""
    namespace_id: bytes
    party_size: int
    verification_data: bytes | None
    address: str | None
    user_agent: str | None
    ray_id: str
    lobby: Lobby | None = None
    """Join: the lobby that is asked for."""
    state: bytes | None = None
    """Join: what that lobby keeps."""
    config: bytes | None = None
    """Create: `lobby_config`."""
    tags: Mapping[str, str] | None = None
    """Find and create: the tags asked for."""
    max_players: int | None = None
    """Find and create: the limit asked for."""


class Verification:
    """Asks, and understands the answer."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound

    async def allows(self, rule: VerificationRule, mode: str, question: Question) -> bool:
        """2xx: true, 4xx: false. Raises MATCHMAKER_VERIFICATION_UNAVAILABLE for all else."""
        try:
            answer = await self._outbound.post(
                rule.url,
                body_of(mode, question),
                {**dict(rule.headers), **_JSON},
                question.ray_id,
                tenant=question.tenant,
            )
            if 200 <= answer.status < 300:
                return True
            if 400 <= answer.status < 500:
                return False
            reason = f"status {answer.status}"
        except Unanswered as error:
            reason = str(error)
        _log.warning(
            "verification gave no answer",
            namespace_id=format_uuid(question.namespace_id),
            game_mode=mode,
            kind=question.kind,
            host=_host(rule.url),
            reason=reason,
        )
        raise ServiceError("MATCHMAKER_VERIFICATION_UNAVAILABLE")


def body_of(mode: str, question: Question) -> bytes:
    """The JSON of decisions 7."""
    return orjson.dumps(
        {
            "verification_data": _json(question.verification_data),
            "game": {
                "namespace_id": format_uuid(question.namespace_id),
                "game_mode": mode,
                "lobby": None if question.lobby is None else _lobby(question.lobby),
                "state": _json(question.state),
                "config": _json(question.config),
                "tags": None if question.tags is None else dict(question.tags),
                "max_players": question.max_players,
            },
            "client": {"address": question.address, "user_agent": question.user_agent},
            "kind": question.kind,
            "party_size": question.party_size,
        }
    )


def _lobby(lobby: Lobby) -> dict[str, Any]:
    created = datetime.fromtimestamp(lobby.create_ts_ms / 1000, UTC)
    return {
        "lobby_id": format_uuid(lobby.id),
        "region_id": lobby.region,
        "create_ts": created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "is_closed": lobby.is_closed,
    }


def _json(text: bytes | None) -> orjson.Fragment | None:
    return orjson.Fragment(text) if text else None


def _host(url: str) -> str:
    try:
        return URL(url).host or ""
    except ValueError:
        return ""
