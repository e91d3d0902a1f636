"""Feed of namespaces from a JSON file, for a service without a control plane.

The file's list `namespaces` contains `hosting.internal.v1.NamespaceConfiguration` messages. Its
list `removed` contains the `namespace_id` and `revision` of each removed namespace. A change takes
effect only with a greater `revision`. Service tokens are stored as hashes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import stat
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from google.protobuf import json_format

from pyservice.calls import InternalCalls
from pyservice.durable_files import write_file
from pyservice.errors import ServiceError, Unreachable
from pyservice.ids import is_uuid
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.pb.hosting.internal.v1 import feed_pb2

SOURCE_EPOCH: Final = 0
_DEFAULT_LIMITS: Final = {"lobby_count_max": 512, "max_players": 256}
_HEX_HASH = re.compile(r"[0-9a-f]{64}")
_TOKEN_FIELDS: Final = ("environment_tokens", "environmentTokens")
_ID_FIELDS: Final = ("namespace_id", "namespaceId")


class FeedDocumentError(Exception):
    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class FeedFileContent:
    configurations: tuple[pb.NamespaceConfiguration, ...]
    removals: tuple[feed_pb2.RemoveRequest, ...]


def read_feed_file(path: Path) -> FeedFileContent:
    return _parse(_document(load_feed_file(path)))


def load_feed_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FeedDocumentError([f"cannot be read: {error.strerror}"]) from None


def replace_feed_file(path: Path, content: bytes) -> None:
    write_file(path, content, stat.S_IMODE(path.stat().st_mode))


def with_service_token(
    content: bytes, namespace_id: str, token: Mapping[str, Any]
) -> tuple[bytes, pb.NamespaceConfiguration]:
    """Adds a service token to a namespace in the feed file's content. Raises the namespace's
    revision.

    Returns the new content and the changed namespace. Raises FeedDocumentError if the JSON or this
    namespace is invalid, or the namespace is missing.
    """
    document = _document(content)
    matches = [
        (path, fields)
        for path, fields in _objects(document, "namespaces", [])
        if namespace_id in (fields.get(name) for name in _ID_FIELDS)
    ]
    if not matches:
        raise FeedDocumentError([f"has no namespace {namespace_id}"])
    if len(matches) > 1:
        raise FeedDocumentError([_twice(matches[1][0])])
    [(path, fields)] = matches
    name = next((name for name in _TOKEN_FIELDS if name in fields), _TOKEN_FIELDS[0])
    before = _configuration(path, fields)
    fields[name] = [*(fields.get(name) or ()), token]
    fields["revision"] = before.revision + 1
    configuration = _configuration(path, fields)
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return text.encode(errors="backslashreplace") + b"\n", configuration


def _document(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise FeedDocumentError([f"is not JSON: {error}"]) from None
    except RecursionError:
        raise FeedDocumentError(["is nested too deeply"]) from None
    if not isinstance(document, dict):
        raise FeedDocumentError(["must be a JSON object"])
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


def _parse(document: Mapping[str, Any]) -> FeedFileContent:
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
            problems.append(f"{path}.namespace_id: must be an id")
        removals.append(removal)
    if problems:
        raise FeedDocumentError(problems)
    return FeedFileContent(tuple(configurations.values()), tuple(removals))


def _twice(path: str) -> str:
    return f"{path}.namespace_id: occurs more than once"


def _objects(
    document: Mapping[str, Any], field: str, problems: list[str]
) -> list[tuple[str, dict[str, Any]]]:
    value = document.get(field, [])
    if not isinstance(value, list):
        problems.append(f"{field}: must be a list")
        return []
    objects = []
    for index, entry in enumerate(value):
        if isinstance(entry, dict):
            objects.append((f"{field}.{index}", entry))
        else:
            problems.append(f"{field}.{index}: must be an object")
    return objects


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
        problems.append(f"{path}.revision: must be an integer of at least 1")


def _with_proto_hash(token: Any) -> Any:
    text = token.get("sha256") if isinstance(token, dict) else None
    if not isinstance(text, str) or not _HEX_HASH.fullmatch(text):
        return token
    return {**token, "sha256": base64.b64encode(bytes.fromhex(text)).decode()}


_RETRY_S: Final = 1.0

Message = feed_pb2.ApplyRequest | feed_pb2.RemoveRequest

_log = get_logger("feed")


class AdminFeedClient(Protocol):
    """Client of the data plane's feed over the admin socket. Raises ServiceError if the feed cannot
    apply changes now.
    """

    async def apply(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse: ...
    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse: ...


class FeedOverSocket:
    def __init__(self, client: InternalCalls) -> None:
        self._client = client

    async def apply(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse:
        response: feed_pb2.ApplyResponse = await self._call("Apply", request)
        return response

    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse:
        response: feed_pb2.RemoveResponse = await self._call("Remove", request)
        return response

    async def _call(self, name: str, request: Any) -> Any:
        try:
            return await self._client.call(f"hosting.internal.v1.Feed.{name}", request)
        except Unreachable:
            raise ServiceError("OVERLOADED") from None


class LocalFeed(Protocol):
    async def check(self, configuration: pb.NamespaceConfiguration) -> feed_pb2.ApplyResponse: ...
    async def apply(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse: ...


class StaticFeed:
    """Sends the namespaces of the feed file to the data plane, at the start and after each
    `reload`. Retries after failures.
    """

    def __init__(
        self, path: Path, client: AdminFeedClient, local: LocalFeed, retry_s: float = _RETRY_S
    ) -> None:
        self._path = path
        self._client = client
        self._local = local
        self._retry_s = retry_s
        self._is_reload_due = asyncio.Event()
        self._is_reload_due.set()
        self._is_fed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._unreadable: list[str] = []
        self._refusals: list[tuple[str, str]] = []
        self._pending: deque[Message] = deque()
        self._blocked_by = ""

    @property
    def problems(self) -> tuple[str, ...]:
        waiting = (
            f"{_name(message)}: is not applied yet: {self._blocked_by}" for message in self._pending
        )
        return (*self._unreadable, *(line for _, line in self._refusals), *waiting)

    def reload(self) -> None:
        self._is_fed.clear()
        self._is_reload_due.set()

    async def wait_fed(self) -> None:
        await self._is_fed.wait()

    async def run(self) -> None:
        try:
            while True:
                is_wanted = await self._next()
                async with self._lock:
                    if is_wanted:
                        await self._read()
                    await self._feed()
                if not self._is_reload_due.is_set():
                    self._is_fed.set()
        finally:
            # Releases waiting callers even after a failure, because the stored configuration is
            # valid.
            self._is_fed.set()

    async def add_service_token(
        self, namespace_id: str, token_id: str, sha256: bytes, expires_ms: int | None = None
    ) -> None:
        """Adds the hash of a service token to the feed file, and applies the changed
        namespace.

        If it raises ServiceError, the token is invalid and the file gets its previous content
        again.
        """
        # Shielded: after a cancellation, file and applied configuration must still match.
        token: dict[str, Any] = {"token_id": token_id, "sha256": sha256.hex()}
        if expires_ms is not None:
            token["expires_ms"] = expires_ms
        await asyncio.shield(self._add_service_token(namespace_id, token))

    async def _add_service_token(self, namespace_id: str, token: dict[str, Any]) -> None:
        async with self._lock:
            try:
                before = await asyncio.to_thread(load_feed_file, self._path)
                after, configuration = with_service_token(before, namespace_id, token)
            except FeedDocumentError as error:
                raise ServiceError("VALIDATION_FAILED", f"{self._path}: {error}") from None
            request = feed_pb2.ApplyRequest(configuration=configuration)
            _raise_problems(request, await self._local.check(configuration))
            try:
                await self._write(after)
                _raise_problems(request, await self._local.apply(request))
            except Exception:
                await self._restore(before, token["token_id"])
                raise
            self._drop_pending(namespace_id)

    async def _write(self, content: bytes) -> None:
        try:
            await asyncio.to_thread(replace_feed_file, self._path, content)
        except OSError as error:
            raise ServiceError(
                "STORAGE_FULL", f"{self._path} cannot be written: {error.strerror}"
            ) from None

    async def _restore(self, before: bytes, token_id: str) -> None:
        try:
            if await asyncio.to_thread(load_feed_file, self._path) != before:
                await self._write(before)
        except (FeedDocumentError, ServiceError) as error:
            # The token was never returned, so its hash is harmless.
            _log.error(
                "token hash not removed from the feed file", token_id=token_id, error=str(error)
            )

    def _drop_pending(self, namespace_id: str) -> None:
        self._refusals = [line for line in self._refusals if line[0] != namespace_id]
        self._pending = deque(
            message for message in self._pending if _namespace_id(message) != namespace_id
        )

    async def _next(self) -> bool:
        try:
            async with asyncio.timeout(self._retry_s if self._pending else None):
                await self._is_reload_due.wait()
        except TimeoutError:
            return False
        self._is_reload_due.clear()
        return True

    async def _read(self) -> None:
        try:
            content = await asyncio.to_thread(read_feed_file, self._path)
        except FeedDocumentError as error:
            self._unreadable = [f"{self._path}: {problem}" for problem in error.problems]
            for problem in self._unreadable:
                _log.error("feed file refused", problem=problem)
            return
        self._unreadable, self._refusals = [], []
        self._pending = deque(content.removals)
        self._pending.extend(
            feed_pb2.ApplyRequest(configuration=configuration)
            for configuration in content.configurations
        )

    async def _feed(self) -> None:
        error_code = ""
        while self._pending and not error_code:
            message = self._pending[0]
            try:
                problems = await self._send(message)
            except ServiceError as error:
                self._pending.rotate(-1)
                error_code = error.code
            else:
                self._pending.popleft()
                self._refusals += [(_namespace_id(message), problem) for problem in problems]
                for problem in problems:
                    _log.error("feed file refused", problem=problem)
        if error_code and error_code != self._blocked_by:
            _log.warning("feed file delayed", code=error_code, waiting=len(self._pending))
        self._blocked_by = error_code

    async def _send(self, message: Message) -> list[str]:
        if isinstance(message, feed_pb2.ApplyRequest):
            return _problems(message, await self._client.apply(message))
        return _problems(message, await self._client.remove(message))


def _problems(
    message: Message, response: feed_pb2.ApplyResponse | feed_pb2.RemoveResponse
) -> list[str]:
    name = _name(message)
    if response.HasField("stale"):
        revision = (
            message.configuration.revision
            if isinstance(message, feed_pb2.ApplyRequest)
            else message.revision
        )
        return [_stale(name, response.stale, revision)]
    if isinstance(response, feed_pb2.RemoveResponse):
        return []
    return [
        f"{name}: {'.'.join(problem.path) or 'configuration'}: {problem.reason}"
        for problem in response.refused.problems
    ]


def _raise_problems(request: feed_pb2.ApplyRequest, response: feed_pb2.ApplyResponse) -> None:
    problems = _problems(request, response)
    if problems:
        raise ServiceError("VALIDATION_FAILED", "\n".join(problems))


def _namespace_id(message: Message) -> str:
    if isinstance(message, feed_pb2.ApplyRequest):
        return message.configuration.namespace_id
    return message.namespace_id


def _name(message: Message) -> str:
    if isinstance(message, feed_pb2.ApplyRequest):
        configuration = message.configuration
        return f"{configuration.game.name_id}/{configuration.name_id}"
    return message.namespace_id


def _stale(name: str, stale: feed_pb2.Stale, revision: int) -> str:
    stored = stale.held
    return (
        f"{name}: revision {revision} is not newer than the stored one "
        f"(source {stored.source_epoch}, revision {stored.revision}): raise the revision"
    )
