"""What the engine refuses as an error of the service: fields at fault, and what the caller needs to know.

The sentences and codes are the error table's.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyservice.errors import ServiceError, field_problem
from pyservice.ids import format_uuid


def service_error(
    slug: str, context: Mapping[str, str | int | tuple[int, ...]], lobby: bytes
) -> ServiceError:
    """`context` is that of `_native.Refused`; `lobby`: the one that it is about, empty for none."""
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
