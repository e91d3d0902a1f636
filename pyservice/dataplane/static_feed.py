"""Configuration from a file, for running without a control plane: the feeder with source epoch 0.

The file is a JSON object with two lists: `namespaces` has messages
`hosting.internal.v1.NamespaceConfiguration` in their JSON form, `removed` the ones that went away,
each with `namespace_id` and `revision`. `sha256` of an environment token may be hex, as `sha256sum`
prints it. A change counts when the namespace's `revision` is greater than before. The feeder speaks
to the data plane as a control plane would; the file holds no secret.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from google.protobuf import json_format

from pyservice.durable import write_file
from pyservice.errors import ServiceError
from pyservice.ids import is_uuid
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.pb.hosting.internal.v1 import feed_pb2

SOURCE_EPOCH: Final = 0
_DEFAULT_LIMITS: Final = {"lobby_count_max": 512, "max_players": 256}
"""mm-config of a new namespace (decisions 4)."""
_RETRY_S: Final = 1.0
_HEX_HASH = re.compile(r"[0-9a-f]{64}")

Answer = TypeVar("Answer", feed_pb2.ApplyResponse, feed_pb2.RemoveResponse)

_log = get_logger("feed")


class FeedClient(Protocol):
    """The data plane, as a feeder sees it. Raises ServiceError when it cannot take anything now."""

    async def apply(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse: ...
    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse: ...


class StaticFeedError(Exception):
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
    """The file as messages. Raises StaticFeedError; what the data plane would refuse is not known
    here.
    """
    return _parse(_read_json(path))


class StaticFeed:
    """Feeds the file: at the start, again on `reload`, and after a token was added to it."""

    def __init__(self, path: Path, client: FeedClient, retry_s: float = _RETRY_S) -> None:
        self._path = path
        self._client = client
        self._retry_s = retry_s
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._fed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self.problems: tuple[str, ...] = ()
        """Why the last reading had no full effect; for /readyz."""

    def reload(self) -> None:
        """Reads the file again, soon."""
        self._fed.clear()
        self._wanted.set()

    async def fed(self) -> None:
        """Returns when the file was read and every namespace in it was taken or refused."""
        await self._fed.wait()

    async def run(self) -> None:
        """Feeds whenever it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._feed_once()
            self._fed.set()

    async def add_environment_token(self, namespace_id: str, token_id: str, sha256: bytes) -> None:
        """Writes the hash into the file and feeds it. Raises ServiceError; then the token is not
        good.
        """
        async with self._one_at_a_time:
            try:
                document = _read_json(self._path)
                _parse(document)
                token = {"token_id": token_id, "sha256": sha256.hex()}
                _append_token(document, namespace_id, token)
                content = _parse(document)
                await asyncio.to_thread(_write_json, self._path, document)
            except StaticFeedError as error:
                raise ServiceError("VALIDATION_FAILED", f"{self._path}: {error}") from None
            except OSError as error:
                raise ServiceError(
                    "STORAGE_FULL", f"{self._path} cannot be written: {error.strerror}"
                ) from None
            problems = await self._feed(content)
        if problems:
            raise ServiceError("VALIDATION_FAILED", "\n".join(problems))

    async def _feed_once(self) -> None:
        async with self._one_at_a_time:
            try:
                content = await asyncio.to_thread(read, self._path)
            except StaticFeedError as error:
                problems = [f"{self._path}: {problem}" for problem in error.problems]
            else:
                problems = await self._feed(content)
            self.problems = tuple(problems)
            for problem in problems:
                _log.error("static feed refused", problem=problem)

    async def _feed(self, content: Content) -> list[str]:
        """Feeds everything; what was refused is told and the rest goes on."""
        problems: list[str] = []
        for removal in content.removals:
            removed = await self._retrying(partial(self._client.remove, removal))
            if removed.HasField("stale"):
                problems.append(_stale(removal.namespace_id, removed.stale, removal.revision))
        for configuration in content.configurations:
            request = feed_pb2.ApplyRequest(configuration=configuration)
            answer = await self._retrying(partial(self._client.apply, request))
            name = f"{configuration.game.name_id}/{configuration.name_id}"
            if answer.HasField("stale"):
                problems.append(_stale(name, answer.stale, configuration.revision))
            problems += [
                f"{name}: {'.'.join(problem.path) or 'configuration'}: {problem.reason}"
                for problem in answer.refused.problems
            ]
        return problems

    async def _retrying(self, send: Callable[[], Awaitable[Answer]]) -> Answer:
        while True:
            try:
                return await send()
            except ServiceError as error:
                _log.warning("static feed waits", code=error.code, retry_s=self._retry_s)
            await asyncio.sleep(self._retry_s)


def _stale(name: str, stale: feed_pb2.Stale, revision: int) -> str:
    held = stale.held
    return (
        f"{name}: revision {revision} is older than what is held "
        f"(source {held.source_epoch}, revision {held.revision}): raise the revision"
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise StaticFeedError([f"cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise StaticFeedError([f"is not JSON: {error}"]) from None
    if not isinstance(document, dict):
        raise StaticFeedError(["has to be a JSON object"])
    return document


def _write_json(path: Path, document: dict[str, Any]) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    write_file(path, json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n", mode)


def _append_token(document: dict[str, Any], namespace_id: str, token: dict[str, str]) -> None:
    """Adds the token to a document that `_parse` has taken."""
    for namespace in document.get("namespaces", ()):
        if namespace["namespace_id"] == namespace_id:
            namespace.setdefault("environment_tokens", []).append(token)
            namespace["revision"] = int(namespace["revision"]) + 1
            return
    raise StaticFeedError([f"has no namespace {namespace_id}"])


def _parse(document: Mapping[str, Any]) -> Content:
    problems = [f"{name}: is not known" for name in document.keys() - {"namespaces", "removed"}]
    configurations = []
    for path, fields in _objects(document, "namespaces", problems):
        configuration = pb.NamespaceConfiguration()
        _read_message({"matchmaker": _DEFAULT_LIMITS} | fields, configuration, path, problems)
        configurations.append(configuration)
    removals = []
    for path, fields in _objects(document, "removed", problems):
        removal = feed_pb2.RemoveRequest()
        _read_message(fields, removal, path, problems)
        if not is_uuid(removal.namespace_id):
            problems.append(f"{path}.namespace_id: has to be an id")
        removals.append(removal)
    if problems:
        raise StaticFeedError(problems)
    return Content(tuple(configurations), tuple(removals))


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
    tokens = fields.get("environment_tokens")
    if isinstance(tokens, list):
        fields = fields | {"environment_tokens": [_with_proto_hash(token) for token in tokens]}
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
