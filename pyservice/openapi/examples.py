"""Examples of `proto/examples` with placeholders filled by samples, or by values of a running service."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from pyservice.pb.examples import EXAMPLES, SAMPLES
from pyservice.schema.methods import Method

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")

FillPlaceholder = Callable[[str], str]
"""Function that returns the value of a placeholder. Raises KeyError for an unknown placeholder."""


class FilledExample(NamedTuple):
    token: str | None
    path: dict[str, str]
    query: dict[str, str]
    body: str | None


NO_EXAMPLE: Final = FilledExample(None, {}, {}, None)


def fill_example(method: Method, fill: FillPlaceholder = SAMPLES.__getitem__) -> FilledExample:
    """Returns the example of an operation. Raises LookupError with a remedy."""
    example = EXAMPLES.get(method.slug)
    if example is None:
        raise LookupError(
            f"{method.name} has no example: add [{method.slug}] to a file of proto/examples"
        )

    def put(text: str) -> str:
        return _PLACEHOLDER.sub(lambda found: _value(method, found[1], fill), text)

    path = {name: put(example.path.get(name, f"{{{name}}}")) for name in method.path_fields}
    query = {name: put(text) for name, text in example.query.items()}
    return FilledExample(
        example.token, path, query, None if example.body is None else _in_json(example.body, put)
    )


def curl(method: Method, example: FilledExample) -> str:
    path = method.template.format(
        **{name: quote(text, safe="") for name, text in example.path.items()}
    )
    query = f"?{urlencode(example.query)}" if example.query else ""
    words = ["curl", "--request", method.http_method, f'"$HOSTING_URL{path}{query}"']
    if example.token == "origin":
        words += ["--header", '"Origin: $ORIGIN"']
    elif example.token is not None:
        words += ["--header", '"Authorization: Bearer $TOKEN"']
    if example.body is not None:
        words += [
            "--header",
            "'Content-Type: application/json'",
            "--data",
            shlex.quote(example.body),
        ]
    return " ".join(words)


def _in_json(body: str, put: Callable[[str], str]) -> str:
    def put_into(value: Any) -> Any:
        match value:
            case str():
                return put(value)
            case list():
                return [put_into(item) for item in value]
            case dict():
                return {put(name): put_into(item) for name, item in value.items()}
        return value

    return json.dumps(put_into(json.loads(body)), ensure_ascii=False)


def _value(method: Method, name: str, fill: FillPlaceholder) -> str:
    try:
        return fill(name)
    except KeyError:
        raise LookupError(
            f"the example of {method.name} has the placeholder {{{name}}}, which nobody fills: "
            "give it a value in proto/examples/samples.toml"
        ) from None
