"""What the engine refuses, as the error that a door tells. The engine's slugs are the codes of the table."""

from __future__ import annotations

from typing import Protocol

from pyservice.errors import ServiceError, field_problem
from pyservice.ids import format_uuid


class Refusal(Protocol):
    """A slug, and what belongs to it."""

    @property
    def slug(self) -> str: ...
    @property
    def context(self) -> dict[str, str | int | tuple[int, ...]]: ...


def service_error(refused: Refusal, lobby: bytes) -> ServiceError:
    """`lobby`: the one that it is about, empty when there is none."""
    slug, context = refused.slug, refused.context
    if "limit" in context:
        reason = f"must be at most {context['limit']}"
        return ServiceError(slug, errors=[field_problem(["party_size"], "too-high", reason)])
    if isinstance(indexes := context.get("indexes"), tuple):
        paths = (["player_tokens", str(index)] for index in indexes)
        return ServiceError(slug, errors=[field_problem(path, "invalid") for path in paths])
    metadata = {name: str(value) for name, value in context.items()}
    if lobby:
        metadata["lobby_id"] = format_uuid(lobby)
    return ServiceError(slug, metadata=metadata)
