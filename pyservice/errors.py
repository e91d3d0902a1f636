"""What an operation raises when it cannot succeed: a code of ``proto/errors.toml`` and its context.

How a door writes it down (status, headers, details) is the door's; the form of the body is here
because it is the same wherever it is shown. No transport is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyservice.pb.errors import TABLE, WORDS, ErrorRow

TYPE_PREFIX = "urn:hosting:problem:"
"""``type`` of a problem is this and the code in lower case with dashes."""


class FieldProblem(NamedTuple):
    """One problem of the input: ``path`` ends with a word of the table, ``message`` says it."""

    path: tuple[str, ...]
    message: str


def field_problem(location: Iterable[str], word: str, reason: str = "") -> FieldProblem:
    """A problem at a location: field names as sent, map keys and indexes as strings.

    ``word`` is one of the words of ``proto/errors.toml``, anything else is a ValueError; ``reason``
    takes the place of what the table says of it.
    """
    if word not in WORDS:
        raise ValueError(f"{word} is no problem word")
    names = tuple(location)
    sentence = f"{'.'.join(names) or 'the body'} {reason or WORDS[word]}"
    return FieldProblem((*names, word), sentence)


class ServiceError(Exception):
    """A request that failed for a reason that its caller is told.

    ``detail`` left out is the table's. ``headers`` are what HTTP adds to the answer, such as Allow.
    """

    def __init__(
        self,
        code: str,
        detail: str | None = None,
        *,
        errors: Iterable[FieldProblem] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code)
        self.code = code
        self.row: ErrorRow = TABLE[code]
        self.detail = detail or self.row.detail
        self.errors = tuple(errors)
        self.metadata: Mapping[str, str] = metadata or {}
        self.retry_after_s = retry_after_s if retry_after_s is not None else self.row.retry_after_s
        self.headers: Mapping[str, str] = headers or {}

    def __str__(self) -> str:
        problems = "".join(f"; {'.'.join(problem.path)}" for problem in self.errors)
        return f"{self.code}: {self.detail}{problems}"

    @property
    def http(self) -> int:
        """The HTTP status."""
        return self.row.http

    @property
    def grpc(self) -> str | None:
        """Name of the gRPC status, None for what only HTTP can meet."""
        return self.row.grpc

    @property
    def fault(self) -> str:
        """Who has to do something: client, server or upstream."""
        return self.row.fault

    @property
    def title(self) -> str:
        """The kind of problem in a few words."""
        return self.row.title

    def problem(self, ray_id: str) -> dict[str, Any]:
        """The body of RFC 9457 with our members (decisions 2): a ``hosting.v1.Problem``."""
        body: dict[str, Any] = {
            "type": TYPE_PREFIX + self.code.lower().replace("_", "-"),
            "title": self.row.title,
            "status": self.row.http,
            "detail": self.detail,
            "code": self.code,
            "message": self.detail,
            "ray_id": ray_id,
        }
        if self.metadata:
            body["metadata"] = dict(self.metadata)
        if self.errors:
            body["errors"] = [
                {"path": list(path), "message": message} for path, message in self.errors
            ]
        return body


def codes() -> frozenset[str]:
    """Every code of the table: what the native part names has to be among them."""
    return frozenset(TABLE)
