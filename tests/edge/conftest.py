"""Fixtures for the message codec: the HTTP server's processing of a request up to the handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pyservice.edge import http_json_codec
from pyservice.errors import ServiceError
from pyservice.schema.methods import METHODS
from pyservice.schema.validation import refuse_invalid

Decode = Callable[..., Any]
Refusal = Callable[..., ServiceError]


@pytest.fixture(scope="session")
def decode() -> Decode:
    methods = {method.slug: method for method in METHODS.values()}
    decoders = {slug: http_json_codec.decoder(method) for slug, method in methods.items()}

    def run(
        slug: str, body: bytes = b"", query: bytes = b"", path: Mapping[str, str] | None = None
    ) -> Any:
        message, unread = decoders[slug](body, query, path or {})
        refuse_invalid(methods[slug], message, unread)
        return message

    return run


@pytest.fixture(scope="session")
def refusal(decode: Decode) -> Refusal:
    def run(*request: Any, **parts: Any) -> ServiceError:
        with pytest.raises(ServiceError) as raised:
            decode(*request, **parts)
        return raised.value

    return run
