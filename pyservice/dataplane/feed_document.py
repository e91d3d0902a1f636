"""The feed file of a static feed as messages, and how a token gets into it.

A JSON object with two lists: `namespaces` has messages `hosting.internal.v1.NamespaceConfiguration`
in their JSON form, `removed` the ones that went away, each with `namespace_id` and `revision`.
`sha256` of an environment token may be hex, as `sha256sum` prints it. The file holds no secret.
"""

from __future__ import annotations

import base64
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format

from pyservice.durable import write_file
from pyservice.ids import is_uuid
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.pb.hosting.internal.v1 import feed_pb2

SOURCE_EPOCH: Final = 0
_DEFAULT_LIMITS: Final = {"lobby_count_max": 512, "max_players": 256}
"""mm-config of a new namespace (decisions 4)."""
_HEX_HASH = re.compile(r"[0-9a-f]{64}")
# The JSON form of a proto takes both names of a field.
_TOKEN_FIELDS: Final = ("environment_tokens", "environmentTokens")
_ID_FIELDS: Final = ("namespace_id", "namespaceId")


class FeedDocumentError(Exception):
    """The file cannot be used. `problems` has a line for each reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Content:
    """What the file says."""

    configurations: tuple[pb.NamespaceConfiguration, ...]
    removals: tuple[feed_pb2.RemoveRequest, ...]


def read(path: Path) -> Content:
    """The file as messages. Raises FeedDocumentError; what the data plane would refuse is not known
    here.
    """
    return _parse(_document(load(path)))


def load(path: Path) -> bytes:
    """The file as it is. Raises FeedDocumentError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FeedDocumentError([f"cannot be read: {error.strerror}"]) from None


def replace(path: Path, content: bytes) -> None:
    """Puts other content into the file, whole and durable, with its mode kept. Raises OSError."""
    write_file(path, content, stat.S_IMODE(path.stat().st_mode))


def with_token(
    content: bytes, namespace_id: str, token: Mapping[str, Any]
) -> tuple[bytes, pb.NamespaceConfiguration]:
    """The file with the token in it and the revision counted up, and the changed namespace. Raises
    FeedDocumentError with the problems of this namespace alone; the others stay as they are.
    """
    document = _document(content)
    found = [
        (path, fields)
        for path, fields in _objects(document, "namespaces", [])
        if namespace_id in (fields.get(name) for name in _ID_FIELDS)
    ]
    if not found:
        raise FeedDocumentError([f"has no namespace {namespace_id}"])
    if len(found) > 1:
        raise FeedDocumentError([_twice(found[1][0])])
    [(path, fields)] = found
    name = next((name for name in _TOKEN_FIELDS if name in fields), _TOKEN_FIELDS[0])
    before = _configuration(path, fields)
    fields[name] = [*(fields.get(name) or ()), token]
    fields["revision"] = before.revision + 1
    changed = _configuration(path, fields)
    # Half a surrogate pair, which JSON can name, is no UTF-8.
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return text.encode(errors="backslashreplace") + b"\n", changed


def _document(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise FeedDocumentError([f"is not JSON: {error}"]) from None
    except RecursionError:
        raise FeedDocumentError(["is nested too deeply"]) from None
    if not isinstance(document, dict):
        raise FeedDocumentError(["has to be a JSON object"])
    return document


def _configuration(path: str, fields: dict[str, Any]) -> pb.NamespaceConfiguration:
    problems: list[str] = []
    configuration = _read_configuration(path, fields, problems)
    if problems:
        raise FeedDocumentError(problems)
    return configuration


def _read_configuration(
    path: str, fields: dict[str, Any], problems: list[str]
) -> pb.NamespaceConfiguration:
    configuration = pb.NamespaceConfiguration()
    _read_message({"matchmaker": _DEFAULT_LIMITS} | fields, configuration, path, problems)
    return configuration


def _parse(document: Mapping[str, Any]) -> Content:
    problems = [f"{name}: is not known" for name in document.keys() - {"namespaces", "removed"}]
    configurations: dict[str, pb.NamespaceConfiguration] = {}
    for path, fields in _objects(document, "namespaces", problems):
        configuration = _read_configuration(path, fields, problems)
        if configuration.namespace_id in configurations:
            problems.append(_twice(path))
        configurations[configuration.namespace_id] = configuration
    removals = []
    for path, fields in _objects(document, "removed", problems):
        removal = feed_pb2.RemoveRequest()
        _read_message(fields, removal, path, problems)
        if not is_uuid(removal.namespace_id):
            problems.append(f"{path}.namespace_id: has to be an id")
        removals.append(removal)
    if problems:
        raise FeedDocumentError(problems)
    return Content(tuple(configurations.values()), tuple(removals))


def _twice(path: str) -> str:
    return f"{path}.namespace_id: is there more than once"


def _objects(
    document: Mapping[str, Any], field: str, problems: list[str]
) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a list, each with where it is."""
    value = document.get(field, [])
    if not isinstance(value, list):
        problems.append(f"{field}: has to be a list")
        return []
    found = []
    for index, one in enumerate(value):
        if isinstance(one, dict):
            found.append((f"{field}.{index}", one))
        else:
            problems.append(f"{field}.{index}: has to be an object")
    return found


def _read_message(
    fields: dict[str, Any],
    message: pb.NamespaceConfiguration | feed_pb2.RemoveRequest,
    path: str,
    problems: list[str],
) -> None:
    for name in _TOKEN_FIELDS:
        if isinstance(tokens := fields.get(name), list):
            fields = fields | {name: [_with_proto_hash(token) for token in tokens]}
    try:
        json_format.ParseDict(fields, message)
    except json_format.ParseError as error:
        problems.append(f"{path}: {error}")
        return
    if message.source_epoch != SOURCE_EPOCH:
        problems.append(f"{path}.source_epoch: is {SOURCE_EPOCH} for a file")
    if message.revision < 1:
        problems.append(f"{path}.revision: has to be an integer from 1 on")


def _with_proto_hash(token: Any) -> Any:
    """People and `sha256sum` write hex; in the JSON form of a proto bytes are base64."""
    text = token.get("sha256") if isinstance(token, dict) else None
    if not isinstance(text, str) or not _HEX_HASH.fullmatch(text):
        return token
    return {**token, "sha256": base64.b64encode(bytes.fromhex(text)).decode()}
