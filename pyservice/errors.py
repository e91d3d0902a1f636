"""Errors of operations. An error is a code of ``proto/errors.toml`` with details of one request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyservice.pb.errors import TABLE, WORDS, ErrorRow


class FieldProblem(NamedTuple):
    """One problem of the input. ``path`` names the field and ends with a problem word.

    For example, ``("display_name", "too-long")`` is the path of a name that is too long.
    """

    path: tuple[str, ...]
    message: str

    @property
    def omitted_count(self) -> int:
        """Number of problems for which this one stands, or 0 for a problem of the input."""
        return 0


def field_problem(location: Iterable[str], word: str, reason: str = "") -> FieldProblem:
    """Returns a problem of the field at ``location``. ``word`` is a problem word such as
    ``too-long``.

    ``reason`` replaces the standard text of the word. Raises ValueError for an unknown word.
    """
    if word not in WORDS:
        raise ValueError(f"{word} is no problem word")
    names = tuple(location)
    sentence = f"{'.'.join(names) or 'the body'} {reason or WORDS[word]}"
    return FieldProblem((*names, word), sentence)


class ServiceError(Exception):
    """Error response to a request. ``code`` is an error code of ``proto/errors.toml``.

    ``detail`` defaults to the text of the code in that file. ``headers`` are added to the HTTP
    response.
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
        return self.row.http

    @property
    def grpc(self) -> str | None:
        """Name of the gRPC status, or None if the error occurs only over HTTP."""
        return self.row.grpc

    @property
    def fault(self) -> str:
        return self.row.fault

    @property
    def title(self) -> str:
        return self.row.title


def codes() -> frozenset[str]:
    return frozenset(TABLE)


class Unreachable(Exception):
    """No process listens on the socket of an internal call, or it does not respond in time."""
