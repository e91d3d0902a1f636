from __future__ import annotations

import re
from typing import Final

from pyservice.errors import ServiceError

_SCHEME: Final = "bearer "
_TOKEN_MAX: Final = 160
_TOKEN_FORM = re.compile(r"(cloud|env|pub|dev|lobby|player|link)_[A-Za-z0-9_-]+")


def bearer_token(header: str | None) -> tuple[str, str]:
    """Returns the token and its kind, such as `cloud`. Raises TOKEN_MISSING, TOKEN_INVALID."""
    if not header:
        raise ServiceError("TOKEN_MISSING")
    if header[: len(_SCHEME)].lower() != _SCHEME:
        raise ServiceError("TOKEN_INVALID", "Send Authorization: Bearer <token>.")
    token = header[len(_SCHEME) :].strip(" ")
    form = _TOKEN_FORM.fullmatch(token)
    if form is None or len(token) > _TOKEN_MAX:
        raise ServiceError("TOKEN_INVALID")
    return token, form[1]


def forbidden(kind: str, accepted_kinds: str) -> ServiceError:
    return ServiceError(
        "FORBIDDEN", f"This operation takes {accepted_kinds} tokens, not a {kind}_ token."
    )
