"""The examples of ``proto/examples``, with placeholders filled: by samples for the document, by a
running service's values for the tests that execute them.
"""

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
"""What stands in the place of a placeholder, by its name. Raises KeyError for one nobody knows."""


class FilledExample(NamedTuple):
    """A request without placeholders. ``body`` is JSON text."""

    token: str | None
    """Kind of the token, None when the operation needs none."""
    path: dict[str, str]
    query: dict[str, str]
    body: str | None


NO_EXAMPLE: Final = FilledExample(None, {}, {}, None)


def fill_example(method: Method, fill: FillPlaceholder = SAMPLES.__getitem__) -> FilledExample:
    """The example of an operation. Raises LookupError, with what to write where, when there is none."""
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
    """The example as a command for a shell that has HOSTING_URL, and TOKEN where one is needed."""
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
    """Text is put into strings of the JSON: numbers keep every digit."""

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
