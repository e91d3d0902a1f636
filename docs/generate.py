"""Generator of reference pages: errors, HTTP and gRPC API, and quotas.

`--check` writes nothing and fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
COMMAND: Final = "python docs/generate.py"
# A script's import path contains only the script's folder.
sys.path.insert(0, str(ROOT))

from pyservice.errors import ServiceError  # noqa: E402
from pyservice.openapi import document  # noqa: E402
from pyservice.openapi.message_schemas import SchemaComponents, SchemaForm  # noqa: E402
from pyservice.pb.comments import COMMENTS  # noqa: E402
from pyservice.pb.errors import TABLE, WORDS  # noqa: E402
from pyservice.pb.hosting.v1.versions_pb2 import CloudConfig  # noqa: E402
from pyservice.schema.configuration_size import (  # noqa: E402
    NAMESPACE_BYTES,
    REVOKED_ID_BYTES,
    SERVICE_TOKEN_BYTES,
)
from pyservice.schema.methods import METHODS, STREAMS  # noqa: E402
from pyservice.settings.quotas import QUOTAS, Quota  # noqa: E402
from pyservice.transport.native import problem_json  # noqa: E402

_RAY_ID: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
_EXAMPLE: Final = json.dumps(
    json.loads(problem_json(ServiceError("MATCHMAKER_LOBBY_FULL"), _RAY_ID)), indent=2
)

HEAD: Final = f"""\
# Error codes

<!-- Written by `{COMMAND}` from proto/errors.toml. -->

An error response has the type `application/problem+json` and this body:

```json
{_EXAMPLE}
```

Decide by `code`. It is stable, and the other texts can change. `detail` says what to do. `message`
repeats it for older clients. `ray_id` is also in the header `x-ray-id`: give it to the operator when
you report a problem.

`metadata` (a map of strings) and `errors` (all problems of the input) are optional. `errors` has at
most 256 problems and 48 KiB. The last one then has the path `["too-many"]` and the number of omitted
problems. A field with too many entries is one problem, and entries above its maximum are not checked.

gRPC returns the status in the table with these details: `google.rpc.ErrorInfo` with the code as reason,
`BadRequest` for `errors`, and `RetryInfo` where HTTP has `Retry-After`. `x-ray-id` is in the trailing
metadata.

*Fault* is the side that has to act: the caller (*client*), this service or its operator (*server*), or
another server that this service called (*upstream*). *Retry* is the default of `Retry-After`. A 401 over
HTTP has `WWW-Authenticate: Bearer`, a 405 `Allow`.

The rules are in [the reference](reference/errors.md).
"""


def error_page() -> str:
    named = _codes_named_in_code()
    parts = [HEAD, "## Codes", "", *_code_table(code for code in TABLE if code in named), ""]
    reserved = [code for code in TABLE if code not in named]
    if reserved:
        parts += [
            "## Reserved codes",
            "",
            "For operations that this version does not have. No operation returns them.",
            "",
            *_code_table(reserved),
            "",
        ]
    parts += [
        "## Words in `errors`",
        "",
        "The `path` of a problem has the field names as sent, and map keys and list indexes as strings.",
        'Its last element is one of these words, as in `["tags", "map", "too-long"]`.',
        "",
        "| word | the field |",
        "|---|---|",
        *(f"| `{word}` | {_cell(text)} |" for word, text in WORDS.items()),
        "",
    ]
    return "\n".join(parts)


def _code_table(codes: Iterator[str] | list[str]) -> list[str]:
    lines = [
        "| code | HTTP | gRPC | fault | retry | error and remedy |",
        "|---|---|---|---|---|---|",
    ]
    for code in codes:
        row = TABLE[code]
        retry = "" if row.retry_after_s is None else f"{row.retry_after_s} s"
        lines.append(
            f"| `{code}` | {row.http} | {row.grpc or '–'} | {row.fault} | {retry} "
            f"| {_cell(row.title)}. {_cell(row.detail)} |"
        )
    return lines


def _codes_named_in_code() -> frozenset[str]:
    found: set[str] = set()
    variants = {code.title().replace("_", ""): code for code in TABLE}
    for path in sorted((ROOT / "native").glob("*/src/**/*.rs")):
        if path.stem == "tests" or path.name == "contract.rs":
            continue
        for slug, variant in re.findall(r'"([A-Z_]+)"|\bCode::(\w+)', path.read_text()):
            found.add(slug or variants.get(variant, ""))
    for path in sorted((ROOT / "pyservice").rglob("*.py")):
        if "pb" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found & TABLE.keys())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


HTTP_HEAD: Final = f"""\
# HTTP API

<!-- Written by `{COMMAND}` from the OpenAPI document. -->

Every operation with its fields, by area. `GET /openapi.json` returns the same as an OpenAPI document.
[Interface](interface.md) describes the resources, and [Wire conventions](wire.md) has the rules of all
operations, such as those for unknown fields and query parameters.

*Accepts* has the prefixes of accepted tokens. *Errors* has the codes of the operation itself. Every operation
can also return [errors](../errors.md) of tokens, the form of the request, limits and the service.
"""


class HttpPage:
    """Writes the page of the HTTP API. A type that an operation uses has its own section."""

    def __init__(self, api: dict[str, Any]) -> None:
        self._api = api
        self._types: dict[str, None] = {}

    def text(self) -> str:
        areas: dict[str, list[str]] = {tag["name"]: [] for tag in self._api["tags"]}
        for path, item in self._api["paths"].items():
            for method, operation in item.items():
                areas[operation["tags"][0]] += self._operation(method.upper(), path, operation)
        parts = [HTTP_HEAD]
        for tag in self._api["tags"]:
            parts += [f"## {tag['name']}", "", tag["description"], "", *areas[tag["name"]]]
        parts += ["## Types", "", *self._type_sections()]
        return "\n".join(parts)

    def _operation(self, method: str, path: str, operation: dict[str, Any]) -> list[str]:
        tokens = ", ".join(_credential(one) for one in operation.get("security", [])) or "no token"
        lines = [f"### {method} {path}", "", _cell(operation["description"]), ""]
        lines += [f"Accepts: {tokens}.", ""]
        parameters = [one for one in operation.get("parameters", []) if "name" in one]
        rows = [
            (one["name"], one["in"], one.get("required", False), one["schema"], one["description"])
            for one in parameters
        ]
        body = _json_schema(operation.get("requestBody", {}))
        rows += [(*row[:1], "body", *row[1:]) for row in self._fields(body)]
        if rows:
            lines += ["| field | in | type | required | meaning |", "|---|---|---|---|---|"]
            for name, place, needed, schema, meaning in rows:
                lines.append(
                    f"| `{name}` | {place} | {self._type(schema)} | {_yes(needed)} "
                    f"| {_cell(meaning)} |"
                )
            lines.append("")
        fields = list(self._fields(_json_schema(operation["responses"]["200"])))
        if errors := operation.get("x-errors"):
            lines += [f"Errors: {', '.join(f'`{one}`' for one in errors)}.", ""]
        lines += ["Response:" if fields else "The response is `{}` or bare JSON.", ""]
        return [*lines, *self._field_table(fields)]

    def _fields(self, schema: dict[str, Any]) -> Iterator[tuple[str, bool, dict[str, Any], str]]:
        resolved = self._resolve(schema)
        required = resolved.get("required", [])
        for name, field in resolved.get("properties", {}).items():
            yield name, name in required, field, field.get("description", "")

    def _field_table(self, fields: Iterable[tuple[str, bool, dict[str, Any], str]]) -> list[str]:
        rows = [
            f"| `{name}` | {self._type(field)} | {_yes(needed)} | {_cell(meaning)} |"
            for name, needed, field, meaning in fields
        ]
        head = ["| field | type | always | meaning |", "|---|---|---|---|"]
        return [*head, *rows, ""] if rows else []

    def _type_sections(self) -> Iterator[str]:
        done: set[str] = set()
        while rest := [name for name in self._types if name not in done]:
            for name in rest:
                done.add(name)
                schema = self._api["components"]["schemas"][name]
                yield from (f"### {name}", "", _cell(schema.get("description", "")), "")
                yield from self._field_table(list(self._fields(schema)))

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        name = schema.get("$ref", "").rpartition("/")[2]
        return self._api["components"]["schemas"][name] if name else schema

    def _type(self, schema: dict[str, Any]) -> str:
        if name := schema.get("$ref", "").rpartition("/")[2]:
            self._types[name] = None
            return f"[{name}](#{name.lower()})"
        if "type" not in schema and "anyOf" in schema:
            return self._type(next(one for one in schema["anyOf"] if one.get("type") != "null"))
        if "items" in schema:
            return f"list of {self._type(schema['items'])}"
        if isinstance(values := schema.get("additionalProperties"), dict):
            return f"map of {self._type(values)}"
        if "enum" in schema:
            return ", ".join(f"`{one}`" for one in schema["enum"] if one is not None)
        kinds = schema.get("type", "any JSON")
        kind = kinds if isinstance(kinds, str) else next(one for one in kinds if one != "null")
        return str(schema.get("format", kind)) if kind == "integer" else str(kind)


def http_page() -> str:
    return HttpPage(json.loads(document(METHODS.values()))).text()


GRPC_HEAD: Final = f"""\
# gRPC API

<!-- Written by `{COMMAND}` from proto/hosting/v1. -->

The services and methods of the package `hosting.v1`. The server offers reflection, and the definitions are
in `proto/hosting/v1`. The fields are those of the [HTTP API](http-api.md). The rules are in [Wire
conventions](wire.md#grpc), and an example is in [Use gRPC](../how-to/use-grpc.md).
"""


def grpc_page() -> str:
    services: dict[str, list[str]] = {}
    for method in METHODS.values():
        service, _, name = method.name.rpartition(".")
        rows = services.setdefault(service, [])
        http = f"`{method.http_method} {method.template}`"
        rows.append(_method_row(name, method.request, method.response, http, method.name))
        if stream := STREAMS.get(method.name):
            row = (stream.rpc_name, stream.request, stream.response, f"stream of {http}")
            rows.append(_method_row(*row, f"{service}.{stream.rpc_name}"))
    parts = [GRPC_HEAD]
    for service, rows in sorted(services.items()):
        parts += [
            f"## {service.rpartition('.')[2]}",
            "",
            f"`{service}`: {COMMENTS.get(service, '')}",
            "",
            "| method | request | response | HTTP | meaning |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(parts)


def _method_row(name: str, request: Any, response: Any, http: str, full_name: str) -> str:
    meaning = _cell(COMMENTS.get(full_name, "").partition("\n")[0])
    messages = f"`{request.DESCRIPTOR.name}` | `{response.DESCRIPTOR.name}`"
    return f"| `{name}` | {messages} | {http} | {meaning} |"


def _json_schema(content: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = (
        content.get("content", {}).get("application/json", {}).get("schema", {})
    )
    return schema


def _credential(requirement: dict[str, Any]) -> str:
    names = {"origin": "a domain's `Origin`", "channel": "the secret of an event channel"}
    return " and ".join(names.get(one, f"`{one}_`") for one in requirement) or "no token"


def _yes(value: bool) -> str:
    return "yes" if value else ""


QUOTA_HEAD: Final = f"""\
# Quotas

<!-- Written by `{COMMAND}` from pyservice/settings/quotas.py. -->

A quota limits what a developer group can use of the service, so that groups can share it. The operator changes the
limits: [Set quotas](../how-to/set-quotas.md).

## Rules

- A request that needs more than the limit fails with 409 `QUOTA_EXCEEDED` and changes nothing. `metadata` has `quota`,
  `scope`, `limit` and `use`.
- The *scope* says for what the limit counts: an identity, a group, or each game or namespace of a group.
- A limit is exact, also for concurrent requests. The check is in the transaction that creates the record. Only
  `configuration_bytes` and `log_bytes` are not, as below.
- The use is counted from what exists. So a deleted object, an ended token or an ended server frees its use at once.
- A limit below the use refuses new objects and removes none.
- The data plane checks `lobbies`, `lobby_cpu_millicores` and `lobby_memory_mb`, also while the control plane is down.
  They count over all namespaces of the group. At a limit, find returns a lobby with room if there is one. Idle lobbies
  stop at the limit. A namespace of a feed file has these quotas only if the file names its group.
- `lobbies` counts lobbies of the service and attached ones. A lobby of the service also uses processor and memory of
  its [tier](configuration.md#region-tiers), from its creation to its end. If not every requested game mode fits, find
  starts one that does.
- Lobbies and dynamic servers have separate limits, because each plane checks what it creates.
- `log_bytes` refuses no request and ends no server. Each minute, new logs beyond the limit displace old ones: first
  those of ended servers, oldest first, then the oldest lines of running ones. `use` is that of the last check. A log
  of a running server keeps its newest MiB, and that of a server which ended within the last minute stays. A limit that
  is below the use removes nothing by itself: new logs displace old ones, so that the use does not grow. The first
  check after a start keeps all logs.
- The data plane counts `configuration_bytes`: its memory for all namespaces of the group. A namespace counts
  {NAMESPACE_BYTES:,} bytes and a domain about 400. An `env_` token counts {SERVICE_TOKEN_BYTES} bytes, a `dev_` token
  about 250, and with 16 ports about 1,000. The versions that namespaces run count, too, and rules of older versions
  with lobbies. Equal versions count once.
- At the limit of `configuration_bytes`, a new namespace, a larger version, a new token or a new domain is refused. A
  revocation, a removal and a change that adds nothing are never refused. A revoked token counts {REVOKED_ID_BYTES}
  bytes, also beyond the limit. `use` can be a few seconds old, and concurrent requests can exceed the limit by a few
  objects.
- An export is written until its group has no room left. It is then removed, and the request fails.
- A repeated request with the same idempotency key gets its first response, also if the quota is full by now.
- An upload counts with its announced length from its preparation on. An incomplete upload is removed after 24 h.
- A deleted upload no longer counts, and a `PUT` to its URL stores nothing. Only a bucket accepts one until the URL
  expires. The service removes such objects every 10 minutes. Until then no quota counts them.
- A group cannot be deleted, so it counts in `groups` for ever. The operator can raise `quotas.groups`, which holds for
  all identities.
- Requests of the operator, such as `pyservice token create`, are not refused. Their results count.

`GET /cloud/groups/{{group_id}}/quotas` returns `quotas`, a list with an entry for each quota of the table except
`groups`. Its fields are in the [HTTP API](http-api.md#groupquota). With scope *game* or *namespace*, `use` is that of
the game or namespace with the largest use, and `object_id` is its id.

## Limits

The setting of a quota is `quotas.` and its name. Its default is in the table.

"""


def quota_page() -> str:
    lines = ["| quota | scope | unit | default | counts |", "|---|---|---|---|---|"]
    lines += [
        f"| `{quota.name}` | {quota.scope} | {quota.unit} | {_limit(quota)} | {quota.meaning} |"
        for quota in QUOTAS.values()
    ]
    return QUOTA_HEAD + "\n".join(lines) + "\n"


def _limit(quota: Quota) -> str:
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if quota.unit == "bytes" and not quota.default % size:
            return f"{quota.default // size:,} {unit}"
    return f"{quota.default:,}"


def settings_schema() -> str:
    """Returns the JSON Schema of `hosting.toml`: the version configuration and tables of the command line."""
    components = SchemaComponents()
    configuration_type: Any = CloudConfig.DESCRIPTOR
    reference = components.reference(configuration_type, SchemaForm.REQUEST)
    root, schemas = components.finish(reference)
    configuration = schemas.pop(root["$ref"].rpartition("/")[2])
    tables = json.loads((ROOT / "clients/cli/hosting_tables.json").read_text())
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hosting.toml",
        "description": "Game of the multiplayer hosting service.",
        "type": "object",
        "additionalProperties": False,
        "required": ["game"],
        "properties": tables | configuration["properties"],
        "$defs": schemas,
    }
    return (
        json.dumps(_without_null(schema), indent=1).replace("#/components/schemas/", "#/$defs/")
        + "\n"
    )


def _without_null(schema: Any) -> Any:
    """Removes `null` from all types, because TOML has no such value."""
    if isinstance(schema, list):
        return [_without_null(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: _without_null(value) for name, value in schema.items()}
    if isinstance(result.get("type"), list):
        (result["type"],) = (one for one in result["type"] if one != "null")
    if {"type": "null"} in result.get("anyOf", ()):
        (only,) = (one for one in result.pop("anyOf") if one != {"type": "null"})
        result = only | result
    return result


PAGES: Final[dict[Path, Callable[[], str]]] = {
    ROOT / "docs" / "errors.md": error_page,
    ROOT / "docs" / "reference" / "http-api.md": http_page,
    ROOT / "docs" / "reference" / "grpc-api.md": grpc_page,
    ROOT / "docs" / "reference" / "quotas.md": quota_page,
    ROOT / "clients/cli/src/pyservice_cli/hosting.schema.json": settings_schema,
}


def outdated() -> list[str]:
    """Returns the paths of pages that differ from their sources."""
    return [
        str(path.relative_to(ROOT))
        for path, text in PAGES.items()
        if not path.exists() or path.read_text() != text()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a page is out of date")
    if not parser.parse_args().check:
        for path, text in PAGES.items():
            path.write_text(text())
        return 0
    if found := outdated():
        print(f"out of date: {', '.join(found)}; run: {COMMAND}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
