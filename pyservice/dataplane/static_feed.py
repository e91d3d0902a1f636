"""Configuration from a file, for running without a control plane: the feeder with source epoch 0.

A change counts when the namespace's `revision` is greater than before. The feeder speaks to the
data plane as a control plane would. What the file looks like is in `feed_document`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any, Final, Protocol

from pyservice.dataplane import feed_document
from pyservice.dataplane.feed_document import FeedDocumentError
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.pb.hosting.internal.v1 import feed_pb2

_RETRY_S: Final = 1.0

Message = feed_pb2.ApplyRequest | feed_pb2.RemoveRequest

_log = get_logger("feed")


class FeedClient(Protocol):
    """The data plane, as a feeder sees it. Raises ServiceError when it cannot take anything now."""

    async def apply(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse: ...
    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse: ...


class LocalFeed(Protocol):
    """The same data plane in this process: it says beforehand what it would take, and whether it
    took something is never in doubt.
    """

    async def check(self, configuration: pb.NamespaceConfiguration) -> feed_pb2.ApplyResponse: ...
    async def apply(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse: ...


class StaticFeed:
    """Feeds the file: at the start and again on `reload`. What cannot be taken for the moment is
    tried again and again. Tokens are added to the file and fed at once.
    """

    def __init__(
        self, path: Path, client: FeedClient, local: LocalFeed, retry_s: float = _RETRY_S
    ) -> None:
        self._path = path
        self._client = client
        self._local = local
        self._retry_s = retry_s
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._fed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._unreadable: list[str] = []
        self._refused: list[tuple[str, str]] = []
        """Namespace id and a line."""
        self._rest: deque[Message] = deque()
        """Read, and neither taken nor refused yet."""
        self._obstacle = ""
        """Code of what the last attempt met, empty when it met nothing."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the last reading has not had its full effect; for /readyz."""
        waiting = (
            f"{_name(message)}: is not taken yet: {self._obstacle}" for message in self._rest
        )
        return (*self._unreadable, *(line for _, line in self._refused), *waiting)

    def reload(self) -> None:
        """Reads the file again, soon."""
        self._fed.clear()
        self._wanted.set()

    async def fed(self) -> None:
        """Returns when the file was read and the first attempt to feed it is over."""
        await self._fed.wait()

    async def run(self) -> None:
        """Feeds whenever it is wanted, and the rest again and again, until cancelled."""
        try:
            while True:
                is_wanted = await self._next()
                async with self._one_at_a_time:
                    if is_wanted:
                        await self._read()
                    await self._feed()
                if not self._wanted.is_set():
                    self._fed.set()
        finally:
            # However this ends, nobody waits for it: what is held is good.
            self._fed.set()

    async def add_environment_token(
        self, namespace_id: str, token_id: str, sha256: bytes, expires_ms: int | None = None
    ) -> None:
        """Writes the hash into the file, revision + 1, and feeds this namespace alone: the others
        of the file have no say. Raises ServiceError; then the file is as it was and the token is
        not good.
        """
        # Who asked may go away; the file and what is held must not part.
        token: dict[str, Any] = {"token_id": token_id, "sha256": sha256.hex()}
        if expires_ms is not None:
            token["expires_ms"] = expires_ms
        await asyncio.shield(self._add_environment_token(namespace_id, token))

    async def _add_environment_token(self, namespace_id: str, token: dict[str, Any]) -> None:
        async with self._one_at_a_time:
            try:
                before = await asyncio.to_thread(feed_document.load, self._path)
                after, configuration = feed_document.with_token(before, namespace_id, token)
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
            self._forget(namespace_id)

    async def _write(self, content: bytes) -> None:
        try:
            await asyncio.to_thread(feed_document.replace, self._path, content)
        except OSError as error:
            raise ServiceError(
                "STORAGE_FULL", f"{self._path} cannot be written: {error.strerror}"
            ) from None

    async def _restore(self, before: bytes, token_id: str) -> None:
        try:
            if await asyncio.to_thread(feed_document.load, self._path) != before:
                await self._write(before)
        except (FeedDocumentError, ServiceError) as error:
            # Nobody has the token; its hash is of no use to anybody.
            _log.error("hash not taken out of the feed file", token_id=token_id, error=str(error))

    def _forget(self, namespace_id: str) -> None:
        """A newer configuration of the namespace was taken than what was read of it."""
        self._refused = [line for line in self._refused if line[0] != namespace_id]
        self._rest = deque(one for one in self._rest if _namespace_id(one) != namespace_id)

    async def _next(self) -> bool:
        """Waits for something to do: True to read the file, False to try the rest again."""
        try:
            async with asyncio.timeout(self._retry_s if self._rest else None):
                await self._wanted.wait()
        except TimeoutError:
            return False
        self._wanted.clear()
        return True

    async def _read(self) -> None:
        try:
            content = await asyncio.to_thread(feed_document.read, self._path)
        except FeedDocumentError as error:
            # What was read before goes on being fed.
            self._unreadable = [f"{self._path}: {problem}" for problem in error.problems]
            for problem in self._unreadable:
                _log.error("static feed refused", problem=problem)
            return
        self._unreadable, self._refused = [], []
        self._rest = deque(content.removals)
        self._rest.extend(
            feed_pb2.ApplyRequest(configuration=configuration)
            for configuration in content.configurations
        )

    async def _feed(self) -> None:
        """Feeds the rest until something cannot be taken now; what was refused is told."""
        met = ""
        while self._rest and not met:
            message = self._rest[0]
            try:
                problems = await self._send(message)
            except ServiceError as error:
                # Behind the others: one that is never taken holds up none of them.
                self._rest.rotate(-1)
                met = error.code
            else:
                self._rest.popleft()
                self._refused += [(_namespace_id(message), problem) for problem in problems]
                for problem in problems:
                    _log.error("static feed refused", problem=problem)
        if met and met != self._obstacle:
            _log.warning("static feed waits", code=met, waiting=len(self._rest))
        self._obstacle = met

    async def _send(self, message: Message) -> list[str]:
        """Feeds one message; the problems when it was refused."""
        if isinstance(message, feed_pb2.ApplyRequest):
            return _problems(message, await self._client.apply(message))
        return _problems(message, await self._client.remove(message))


def _problems(
    message: Message, answer: feed_pb2.ApplyResponse | feed_pb2.RemoveResponse
) -> list[str]:
    name = _name(message)
    if answer.HasField("stale"):
        revision = (
            message.configuration.revision
            if isinstance(message, feed_pb2.ApplyRequest)
            else message.revision
        )
        return [_stale(name, answer.stale, revision)]
    if isinstance(answer, feed_pb2.RemoveResponse):
        return []
    return [
        f"{name}: {'.'.join(problem.path) or 'configuration'}: {problem.reason}"
        for problem in answer.refused.problems
    ]


def _raise_problems(request: feed_pb2.ApplyRequest, answer: feed_pb2.ApplyResponse) -> None:
    problems = _problems(request, answer)
    if problems:
        raise ServiceError("VALIDATION_FAILED", "\n".join(problems))


def _namespace_id(message: Message) -> str:
    if isinstance(message, feed_pb2.ApplyRequest):
        return message.configuration.namespace_id
    return message.namespace_id


def _name(message: Message) -> str:
    """What people know it by: `game/namespace`, or the id of one that is to be removed."""
    if isinstance(message, feed_pb2.ApplyRequest):
        configuration = message.configuration
        return f"{configuration.game.name_id}/{configuration.name_id}"
    return message.namespace_id


def _stale(name: str, stale: feed_pb2.Stale, revision: int) -> str:
    held = stale.held
    return (
        f"{name}: revision {revision} is not newer than what is held "
        f"(source {held.source_epoch}, revision {held.revision}): raise the revision"
    )
