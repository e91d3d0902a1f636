"""Difference between the settings of a running process and settings that SIGHUP has read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from pyservice.settings.model import Settings

_APPLIED: Final = frozenset(
    {
        *("rate_limits", "quotas", "tiers", "tls.cert", "tls.key"),
        *("edge.certificates", "edge.limits"),
    }
)
"""Settings and sections that the planes and edge-guard apply without a restart."""


def unapplied_changes(started: Settings, current: Settings) -> list[str]:
    """Returns the names of settings that differ and need a restart, such as `http_limits.backlog`."""
    names = sorted(_changes(started, current, ""))
    return names if started.has_tls == current.has_tls else [*names, "tls"]


def _changes(before: BaseModel, after: BaseModel, prefix: str) -> Iterator[str]:
    for field in type(before).model_fields:
        name = f"{prefix}{field}"
        old, new = getattr(before, field), getattr(after, field)
        if old == new or name in _APPLIED:
            continue
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            yield from _changes(old, new, f"{name}.")
        else:
            yield name
