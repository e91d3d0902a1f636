"""Table of the requests that provoke each error code of each operation.

Cases of one area are in `tests.contract.areas`. The tests fail for a declared code without a case.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import httpx

from pyservice.openapi import CODES_BY_CREDENTIAL, credential_kinds, declared_codes, implied_codes
from pyservice.pb.buf.validate import validate_pb2
from pyservice.schema.methods import Method, descriptor_of, option
from tests.contract.scenario import Scenario
from tests.contract.service_errors import CONDITIONS, shared_error_test

Row = Callable[[Scenario], httpx.Response]
ROWS: Final[dict[tuple[str, str], Row]] = {}


class Elsewhere(NamedTuple):
    """The test that covers an error code, and the reason why no contract test can provoke the code."""

    reason: str
    test: str


ELSEWHERE: Final[dict[tuple[str, str], Elsewhere]] = {}
"""Codes of operations that a test in another folder covers."""


def error_case(slug: str, code: str) -> Callable[[Row], None]:
    """Registers the request for a declared code of an operation. The function returns the last
    response.
    """

    def register(row: Row) -> None:
        assert (slug, code) not in ROWS, f"{slug} has two rows for {code}"
        ROWS[slug, code] = row

    return register


def error_cases(slug: str, rows: dict[str, Row]) -> None:
    """Registers the requests for several codes of an operation."""
    for code, row in rows.items():
        error_case(slug, code)(row)


def elsewhere(slug: str, code: str, test: str, reason: str) -> None:
    assert (slug, code) not in ELSEWHERE, f"{slug}: two tests produce {code}"
    ELSEWHERE[slug, code] = Elsewhere(reason, test)


def rows_of(method: Method) -> Iterator[tuple[str, Row]]:
    """Yields each error code of an operation with its request. Raises AssertionError for a code
    without a test.
    """
    missing = [
        code
        for code in declared_codes(method)
        if (method.slug, code) not in ROWS.keys() | ELSEWHERE.keys()
        and code not in (*CONDITIONS, *implied_codes(method))
        and not _absent(method, code)
    ]
    assert not missing, (
        f"{method.slug} declares {', '.join(missing)} and no request has: "
        f"add @error_case({method.slug!r}, ...) to a module of tests/contract/areas"
    )
    for code in declared_codes(method):
        row = ROWS.get((method.slug, code)) or _absent(method, code)
        if row is not None:
            assert (method.slug, code) not in ELSEWHERE, f"{method.slug}: {code} has a row"
            yield code, row
    for code in implied_codes(method):
        row = ROWS.get((method.slug, code))
        if row is None and (shared_error_test(method, code) or (method.slug, code) in ELSEWHERE):
            continue
        is_instead = row is not None and code not in declared_codes(method)
        for general in [row] if row and is_instead else _GENERAL[code](method):
            yield code, general


def _one(**changes: Any) -> Callable[[Method], list[Row]]:
    return lambda method: [lambda scenario: scenario.call(method.slug, **changes)]


def _wrong_body(method: Method) -> list[Row]:
    content = b"[]" if method.body_field == "*" else b"{not json"
    return [
        lambda scenario: scenario.call(method.slug, content=content),
        lambda scenario: scenario.call(method.slug, content=b'{"a": 1} trailing'),
    ]


def _large_body(method: Method) -> list[Row]:
    size = (method.body_limit_bytes or 1 << 20) + 1
    return [lambda scenario: scenario.call(method.slug, content=b" " * size)]


def _wrong_ids(method: Method) -> list[Row]:
    fields = descriptor_of(method.request).fields_by_name

    def row(name: str) -> Row:
        return lambda scenario: scenario.call(method.slug, path={name: "No_Such--Form"})

    return [
        row(name)
        for name in method.path_fields
        if option(fields[name], validate_pb2.field).string.pattern
    ]


_NAMED_BY: Final[dict[str, tuple[str, ...]]] = {
    "GAME_NOT_FOUND": ("game_id",),
    "NAMESPACE_NOT_FOUND": ("namespace_id", "environment_id"),
    "VERSION_NOT_FOUND": ("version_id",),
    "GROUP_NOT_FOUND": ("group_id", "developer_group_id"),
    "BUILD_NOT_FOUND": ("build_id",),
    "SERVER_NOT_FOUND": ("server_id",),
    "SITE_NOT_FOUND": ("site_id",),
    "UPLOAD_NOT_FOUND": ("upload_id",),
    "TOKEN_NOT_FOUND": ("token_id",),
    "MATCHMAKER_LOBBY_NOT_FOUND": ("lobby_id",),
}
_UNKNOWN_ID: Final = "00010000-0000-4000-8000-000000000000"


def _absent(method: Method, code: str) -> Row | None:
    for name in _NAMED_BY.get(code, ()):
        if name in method.path_fields:
            return lambda scenario: scenario.call(method.slug, path={name: _UNKNOWN_ID})
        if method.body_field == "*" and name in descriptor_of(method.request).fields_by_name:
            return lambda scenario: scenario.call(method.slug, fields={name: _UNKNOWN_ID})
    return None


def _kinds(method: Method) -> list[str]:
    return sorted({kind.value for kind in credential_kinds(method)} - {"none", "origin"})


def _other_kinds(method: Method) -> list[Row]:
    def row(kind: str) -> Row:
        return lambda scenario: scenario.call(method.slug, token=kind)

    # The secret of a channel has no recognizable form, so it counts as no token.
    others = [kind for kind in Scenario.kinds() if kind not in {*_kinds(method), "channel"}]
    guest: Row = lambda scenario: scenario.call(method.slug, bearer="player_AAAAAAAAAAAAAAAA")  # noqa: E731
    return [guest, *(row(kind) for kind in others)]


def _used_key(method: Method) -> list[Row]:
    def row(scenario: Scenario) -> httpx.Response:
        key = {"idempotency-key": scenario.name}
        scenario.good("create_group", headers=key, fields={"display_name": scenario.name})
        return scenario.call(method.slug, headers=key)

    return [row]


def _forged(method: Method) -> list[Row]:
    def row(kind: str) -> Row:
        return lambda scenario: scenario.call(
            method.slug, bearer=f"{kind}_AAAAAAAAAAAAAAAAAAAAAAAA"
        )

    return [row(kind) for kind in _kinds(method) if kind in Scenario.kinds()]


def _ended(how: str, code: str) -> Callable[[Method], list[Row]]:
    """Returns requests with expired or revoked tokens, from placeholders like `expired env`."""

    def rows(method: Method) -> list[Row]:
        def row(kind: str) -> Row:
            return lambda scenario: scenario.call(
                method.slug, bearer=scenario.value(f"{how} {kind}")
            )

        ending = sorted(
            kind.value
            for kind in credential_kinds(method)
            if code in CODES_BY_CREDENTIAL.get(kind, ())
        )
        missing = [kind for kind in ending if not Scenario.can_fill(f"{how} {kind}")]
        assert not missing, f"{code}: give scenarios a placeholder({how!r} and each of {missing})"
        return [row(kind) for kind in ending]

    return rows


_GENERAL: Final[dict[str, Callable[[Method], list[Row]]]] = {
    "QUERY_INVALID": _one(query={"no_such_parameter": "1"}),
    "URI_TOO_LONG": _one(query={"long": "x" * 9_000}),
    "HEADERS_TOO_LARGE": _one(headers={"x-long": "x" * 33_000}),
    "BODY_INVALID": _wrong_body,
    "BODY_TOO_LARGE": _large_body,
    "MEDIA_TYPE_UNSUPPORTED": _one(headers={"content-type": "text/plain"}),
    "HEADER_INVALID": _one(headers={"idempotency-key": "two words"}),
    "ID_INVALID": _wrong_ids,
    "IDEMPOTENCY_KEY_REUSED": _used_key,
    "TOKEN_MISSING": _one(token=None),
    "TOKEN_INVALID": _forged,
    "TOKEN_EXPIRED": _ended("expired", "TOKEN_EXPIRED"),
    "TOKEN_REVOKED": _ended("revoked", "TOKEN_REVOKED"),
    "FORBIDDEN": _other_kinds,
    "RATE_LIMITED": lambda _: [],
}
"""`test_schemathesis` provokes RATE_LIMITED with a service of its own."""


def load_areas() -> None:
    from tests.contract import areas

    for module in pkgutil.iter_modules(areas.__path__):
        importlib.import_module(f"{areas.__name__}.{module.name}")
