"""Check of a response against the OpenAPI document.

The document has a 500 for every operation. A response with 500 still counts as a failure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import httpx
import jsonschema_rs

from pyservice.openapi import declared_codes
from pyservice.pb.errors import TABLE
from pyservice.schema.methods import METHODS

_UNFINISHED: Final = frozenset({503, 504})
"""Any operation may return these codes while the service is unavailable or slow."""
_BY_SLUG: Final = {method.slug: method for method in METHODS.values()}


class ResponseChecker:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._components = document["components"]
        self._operations = {
            operation["operationId"]: operation
            for item in document["paths"].values()
            for operation in item.values()
        }
        self._validators: dict[tuple[str, str, str], Any] = {}

    def code(self, slug: str, answer: httpx.Response) -> str:
        """Returns `OK` or the error code. Raises AssertionError for undocumented responses and for
        failures of the service.
        """
        return self.check(slug, answer.status_code, answer.headers, answer.content)

    def check(self, slug: str, status: int, headers: Mapping[str, str], body: bytes) -> str:
        returned = f"{slug}: {status} {body[:600]!r}"
        assert not is_failure(slug, status), f"the service failed: {returned}"
        response = self._response(slug, str(status))
        assert response is not None, f"the document has no such status: {returned}"
        media_type = headers.get("content-type", "").removesuffix("; charset=utf-8")
        assert media_type in response["content"], f"type {media_type}: {returned}"
        for name, reference in response["headers"].items():
            header = self._resolved(reference)
            assert name in headers, f"no header {name}: {returned}"
            text = headers[name]
            value: Any = int(text) if header["schema"].get("type") == "integer" else text
            assert jsonschema_rs.is_valid(header["schema"], value), f"{name}: {value}: {returned}"
        value = json.loads(body) if media_type.endswith("json") else body.decode()
        problems = [
            f"{'/'.join(map(str, error.instance_path))}: {error.message}"
            for error in self._validator(slug, str(status), response, media_type).iter_errors(value)
        ]
        assert not problems, f"{'; '.join(problems)}: {returned}"
        return "OK" if status == 200 else str(value["code"])

    def _validator(self, slug: str, status: str, response: Any, media_type: str) -> Any:
        key = (slug, status, media_type)
        if key not in self._validators:
            schema = response["content"][media_type]["schema"]
            self._validators[key] = jsonschema_rs.Draft202012Validator(
                {"allOf": [schema], "components": self._components}, validate_formats=True
            )
        return self._validators[key]

    def _response(self, slug: str, status: str) -> Any:
        response = self._operations[slug]["responses"].get(status)
        return None if response is None else self._resolved(response)

    def _resolved(self, value: Any) -> Any:
        if "$ref" not in value:
            return value
        _, _, kind, name = value["$ref"].split("/")
        return self._components[kind][name]


def is_failure(slug: str, status: int) -> bool:
    """Returns whether the status is an undeclared one of 500 or above. 503 and 504 are never
    failures.

    INTERNAL always counts as a failure.
    """
    if status < 500 or status in _UNFINISHED:
        return False
    own = {TABLE[code].http for code in declared_codes(_BY_SLUG[slug]) if code != "INTERNAL"}
    return status not in own
