"""Object store in an S3 bucket. Clients upload directly by presigned URLs.

The library obstore cannot sign the length of an upload. S3 therefore accepts any length, and the
completion refuses a wrong one. The completion copies the object to another name, which a still
valid URL cannot change.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.storage.objects import Part, RunStep

READ_BYTES: Final = 256 << 10
_PUT_MAX_BYTES: Final = 5 << 30
_AT_ONCE: Final = 32
_BULK: Final = 1000
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_READ_TIMEOUT: Final = timedelta(seconds=30)
# Timeout of a whole request. A slow client may read a large file for long.
_REQUEST_TIMEOUT: Final = timedelta(hours=12)
_RETRIES: Final = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

log = get_logger("pyservice.storage.s3")


@dataclass(frozen=True, slots=True)
class BucketSettings:
    """Location and credentials of a bucket. Without `endpoint`, the bucket is at AWS.

    Without access keys, the credentials come from the environment or the machine role. Clients
    connect to `public_endpoint` if it is set.
    """

    bucket: str
    region: str = "us-east-1"
    endpoint: str | None = None
    public_endpoint: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    prefix: str = ""


class S3BlobStore:
    largest_put_bytes: Final = _PUT_MAX_BYTES
    takes_any_length: Final = True

    def __init__(self, settings: BucketSettings) -> None:
        self._settings = settings
        self.store = self._open(settings.endpoint)
        self._public = (
            self._open(settings.public_endpoint) if settings.public_endpoint else self.store
        )
        self._permits = asyncio.Semaphore(_AT_ONCE)

    def _open(self, endpoint: str | None) -> S3Store:
        settings = self._settings
        options: dict[str, Any] = {"region": settings.region}
        if endpoint:
            options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
        if settings.access_key_id:
            options["access_key_id"] = settings.access_key_id
            options["secret_access_key"] = settings.secret_access_key
        return S3Store(
            settings.bucket,
            prefix=settings.prefix or None,
            client_options={
                "allow_http": bool(endpoint and endpoint.startswith("http://")),
                "connect_timeout": _CONNECT_TIMEOUT,
                "read_timeout": _READ_TIMEOUT,
                "timeout": _REQUEST_TIMEOUT,
            },
            retry_config=_RETRIES,  # type: ignore[arg-type]  # typed as a whole one
            **options,
        )

    async def check(self) -> None:
        try:
            # The response about a missing object would not say that the bucket is missing.
            async for _ in obstore.list(self.store, prefix="kept/none"):
                pass
        except (BaseError, OSError) as error:
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE", _cause(error)) from error

    async def put_url(self, key: str, part: Part, expires_s: int) -> str:
        name = f"pending/{key}.{part.byte_offset}"
        with _translate_store_errors():
            return await obstore.sign_async(self._public, "PUT", name, timedelta(seconds=expires_s))

    async def lengths(self, names: Sequence[str]) -> list[int | None]:

        async def length(name: str) -> int | None:
            try:
                with _translate_store_errors():
                    return int((await obstore.head_async(self.store, name))["size"])
            except FileNotFoundError:
                return None

        return await self._each(length, names)

    async def keep(self, names: Sequence[tuple[str, str]]) -> None:
        async def copy(pair: tuple[str, str]) -> None:
            try:
                with _translate_store_errors():
                    await obstore.copy_async(self.store, *pair)
            except FileNotFoundError:
                with _translate_store_errors():
                    await obstore.head_async(self.store, pair[1])

        await self._each(copy, names)
        await self.forget([before for before, _ in names])

    async def copy(self, names: Sequence[tuple[str, str]]) -> list[bool]:
        async def copy(pair: tuple[str, str]) -> bool:
            try:
                with _translate_store_errors():
                    await obstore.copy_async(self.store, *pair)
            except FileNotFoundError:
                return False
            return True

        return await self._each(copy, names)

    async def forget(self, names: Sequence[str]) -> None:
        for first in range(0, len(names), _BULK):
            with _translate_store_errors(), contextlib.suppress(FileNotFoundError):
                await obstore.delete_async(self.store, list(names[first : first + _BULK]))

    async def refuse_puts(self, prefix: str) -> None:
        await self.forget(await self.names(f"pending/{prefix}"))

    async def write(self, name: str, content: bytes) -> None:
        with _translate_store_errors():
            await obstore.put_async(self.store, name, content, use_multipart=False)

    async def read(self, name: str, start: int, end: int) -> AsyncIterator[bytes]:
        if start >= end:
            return
        with _translate_store_errors():
            response = await obstore.get_async(self.store, name, options={"range": (start, end)})
            async for block in response.stream(min_chunk_size=READ_BYTES):
                yield bytes(block)

    async def digest(self, pieces: Sequence[tuple[str, int]], run: RunStep) -> str:
        state = hashlib.sha256()
        for name, length in pieces:
            async for block in self.read(name, 0, length):
                await run(lambda block=block: state.update(block))  # type: ignore[misc]
        return state.hexdigest()

    async def names(self, folder: str) -> list[str]:
        paths: list[str] = []
        with _translate_store_errors():
            async for page in obstore.list(self.store, prefix=folder, chunk_size=_BULK):
                paths += [entry["path"] for entry in page]
        return paths

    async def pending(self) -> AsyncIterator[list[str]]:
        with _translate_store_errors():
            async for page in obstore.list(self.store, prefix="pending", chunk_size=_BULK):
                yield [entry["path"] for entry in page]

    async def drop_empty_folders(self, older_than_s: float) -> None: ...

    async def _each(
        self, act: Callable[[_Item], Awaitable[_Result]], items: Sequence[_Item]
    ) -> list[_Result]:
        async def in_turn(item: _Item) -> _Result:
            async with self._permits:
                return await act(item)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(in_turn(item)) for item in items]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]


def _cause(error: Exception) -> str:
    """Returns the end of the first line. The request is before it, and debug output follows."""
    line = str(error).partition("\n")[0]
    return line.rpartition(" - ")[2][:500]


@contextlib.contextmanager
def _translate_store_errors() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        # The message contains neither keys nor signatures.
        log.error("object store failed", reason=type(error).__name__, message=str(error)[:500])
        raise ServiceError(
            "CONTROL_PLANE_UNAVAILABLE", "The object store does not answer: try again later."
        ) from error
