"""Hiding of secrets in the records that `list` and `show` print."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

HIDDEN: Final = "(hidden)"
_SECRET_FIELDS: Final = frozenset({"secret_key"})
_SECRET_MAPS: Final = frozenset({"env", "environment", "build_env", "build_args", "headers"})
"""Maps of which only the names are printed. A list `headers`, that of a site, is public."""
_SHORTEST_SECRET: Final = 4
"""Shorter values are in too many other texts."""


def hide_secrets(content: Any, secrets: Collection[str]) -> Any:
    """Returns a copy in which `(hidden)` replaces secret fields, and texts with one of the secrets."""
    if isinstance(content, dict):
        return {name: _hidden_field(name, value, secrets) for name, value in content.items()}
    if isinstance(content, list):
        return [hide_secrets(one, secrets) for one in content]
    if isinstance(content, str):
        long = (one for one in secrets if len(one) >= _SHORTEST_SECRET)
        return HIDDEN if any(one in content for one in long) else content
    return content


def _hidden_field(name: str, value: Any, secrets: Collection[str]) -> Any:
    if name in _SECRET_FIELDS:
        return HIDDEN
    if name in _SECRET_MAPS and isinstance(value, dict):
        return dict.fromkeys(value, HIDDEN)
    return hide_secrets(value, secrets)
