"""Generator of docs/errors.md from proto/errors.toml.

`--check` writes nothing and fails if the page is out of date.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "errors.md"
COMMAND: Final = "python docs/generate.py"
# A script's import path contains only the script's folder.
sys.path.insert(0, str(ROOT))

from pyservice.dataplane.engine import REFUSAL_SLUGS  # noqa: E402
from pyservice.errors import ServiceError  # noqa: E402
from pyservice.pb.errors import TABLE, WORDS  # noqa: E402

_RAY_ID: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
_EXAMPLE: Final = json.dumps(ServiceError("MATCHMAKER_LOBBY_FULL").problem(_RAY_ID), indent=2)

HEAD: Final = f"""\
# Errors

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


def page() -> str:
    """Returns the current text of the page."""
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
        "The `path` of a problem has the field names as sent, map keys and list indexes as strings,",
        'and then one of these words, such as `["tags", "map", "too-long"]`.',
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
    """Returns the codes of the engine and those that modules name."""
    found = set(REFUSAL_SLUGS)
    for path in sorted((ROOT / "pyservice").rglob("*.py")):
        if "pb" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found & TABLE.keys())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the page is out of date")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print(f"{PAGE.relative_to(ROOT)} is out of date; run: {COMMAND}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
