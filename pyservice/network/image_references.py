"""References of container images, such as `registry.example.com/team/game:1.0@sha256:…`."""

from __future__ import annotations

import re
from typing import Final

REFERENCE_MAX: Final = 512

_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?"
_REFERENCE: Final = re.compile(
    rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?P<digest>@sha256:[0-9a-f]{64})?"
)


def is_image_reference(text: str) -> bool:
    return len(text) <= REFERENCE_MAX and _REFERENCE.fullmatch(text) is not None


def has_digest(reference: str) -> bool:
    """Returns whether a reference always names the same image. A tag can be moved."""
    match = _REFERENCE.fullmatch(reference)
    return match is not None and match["digest"] is not None
