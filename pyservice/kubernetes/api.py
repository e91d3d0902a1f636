"""Client of the API server of a cluster: reads, watches and changes of objects.

Objects are dictionaries as in the JSON of the API, because the service uses few of their fields.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, NamedTuple, Self

import aiohttp
import orjson

from pyservice.kubernetes.cluster_access import ClusterAccess
from pyservice.timestamps import now_ms

Object = dict[str, Any]

PAGE_OBJECTS: Final = 250
"""Objects in one page of a list. A page of Pods takes about 15 ms of the event loop."""
REQUEST_TIMEOUT_S: Final = 30.0
SILENCE_MAX_S: Final = 90.0
"""Longest silence of a watch. The API server sends a bookmark each minute."""

_CONNECTIONS: Final = 64
_CONNECT_TIMEOUT_S: Final = 10.0
_KEEPALIVE_IDLE_S: Final = 10
_KEEPALIVE_INTERVAL_S: Final = 5
_KEEPALIVE_PROBES: Final = 3
_JSON: Final = "application/json"
_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
_MESSAGE_MAX: Final = 2_000
_GONE: Final = 410
_CLOCK_ERROR_MAX_MS: Final = 2_000
"""Difference of clocks that is not corrected. Dates of HTTP have whole seconds."""


class Collection(NamedTuple):
    """Objects of one kind: those of a namespace, or those of the cluster."""

    plural: str
    namespace: str = ""
    group: str = ""
    """Group of the API. Empty: that of Pods and Nodes."""
    version: str = "v1"

    @property
    def path(self) -> str:
        root = f"/apis/{self.group}" if self.group else "/api"
        inside = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}/{self.version}{inside}/{self.plural}"

    def __str__(self) -> str:
        kind = f"{self.plural}.{self.group}" if self.group else self.plural
        return f"{kind} in namespace {self.namespace}" if self.namespace else kind


NODES: Final = Collection("nodes")


def pods_of(namespace: str) -> Collection:
    return Collection("pods", namespace)


class ApiError(Exception):
    """The API server refused a request, or gave no answer.

    The text names what was tried, such as "create pods in namespace games: …".
    """

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status. 0: there was no answer."""
        self.reason = reason
        """Reason of the API server, such as AlreadyExists."""
        self.message = message
        """Sentence of the API server."""
        self.retry_after_s = retry_after_s
        self.tried = ""

    @property
    def is_final(self) -> bool:
        """Returns whether a repetition of the request would be refused again."""
        return 400 <= self.status < 500 and self.status not in (401, 408, 409, 429)

    @property
    def is_of_absent_object(self) -> bool:
        """Returns whether the object with the UID of the request does not exist any more."""
        is_of_another = self.status in (409, 422) and "uid" in self.message.lower()
        return self.status == 404 or is_of_another

    def __str__(self) -> str:
        return f"{self.tried}: {self.message}" if self.tried else self.message


class Page(NamedTuple):
    objects: list[Object]
    version: str
    """Resource version of the whole list."""


class Change(NamedTuple):
    kind: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Object


class KubernetesApi:
    def __init__(self, access: ClusterAccess, *, silence_max_s: float = SILENCE_MAX_S) -> None:
        self._access = access
        self._silence_max_s = silence_max_s
        self._clock_base_ms = now_ms() - _monotonic_ms()
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections. Later requests fail like those without an answer."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    def now_ms(self) -> int:
        """Returns the Unix time of the API server, as its answers tell it.

        The clock of this machine may be wrong, and times in objects are those of the cluster.
        """
        return self._clock_base_ms + _monotonic_ms()

    async def get(self, collection: Collection, name: str) -> Object:
        """Returns one object. Raises ApiError."""
        return await self._call("get", collection, name)

    async def list_pages(
        self, collection: Collection, *, selector: str = "", page_objects: int = PAGE_OBJECTS
    ) -> AsyncIterator[Page]:
        """Yields the objects with the labels of `selector` as they are now, in pages.

        The API server reads them from its database and not from its cache. Raises ApiError, also
        with status 410 if the next page comes too late.
        """
        query = {"limit": str(page_objects), **_selection(selector)}
        while True:
            answer = await self._call("list", collection, query=query)
            metadata = answer.get("metadata") or {}
            yield Page(answer.get("items") or [], str(metadata.get("resourceVersion", "")))
            token = metadata.get("continue")
            if not token:
                return
            query["continue"] = token

    async def watch(
        self, collection: Collection, version: str, *, selector: str = ""
    ) -> AsyncIterator[Change]:
        """Yields the changes of objects after a resource version.

        Ends when the API server ends the watch. Raises ApiError, also with status 410 if the
        version is too old, and with status 0 after a long silence.
        """
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            **_selection(selector),
        }
        tried = f"watch {collection}"
        # Without a limit in total: the API server ends a watch after half an hour or more.
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=self._silence_max_s
        )
        try:
            async with self._open().request(
                "GET", self._url(collection), params=query, timeout=timeout, **self._options()
            ) as response:
                self._read_clock(response)
                if response.status != 200:
                    raise _refusal(response, await response.read())
                async for line in _lines(response.content):
                    yield _change(orjson.loads(line))
        except ApiError as error:
            error.tried = error.tried or tried
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _unanswered(tried, error) from None

    async def create(self, collection: Collection, new: Object) -> Object:
        """Creates an object, and returns it as it is stored. Raises ApiError."""
        return await self._call("create", collection, body=new)

    async def patch(self, collection: Collection, name: str, change: Object) -> Object:
        """Merges `change` into an object, and returns the result. Raises ApiError.

        Lists such as finalizers are merged too: the items that others have added stay.
        """
        return await self._call("patch", collection, name, body=change, content=_MERGE_PATCH)

    async def delete(
        self, collection: Collection, name: str, *, uid: str, grace_s: int | None = None
    ) -> bool:
        """Requests the deletion of the object with this UID.

        Returns False if it does not exist any more, even if another one has its name. A Pod is
        gone when its node has stopped it, at most `grace_s` seconds later. Raises ApiError.
        """
        options: Object = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": uid},
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            await self._call("delete", collection, name, body=options)
        except ApiError as error:
            if error.is_of_absent_object:
                return False
            raise
        return True

    async def _call(
        self,
        verb: str,
        collection: Collection,
        name: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = _JSON,
    ) -> Object:
        tried = f"{verb} {collection}"
        options = self._options()
        if body is not None:
            options["data"] = orjson.dumps(body)
            options["headers"]["Content-Type"] = content
        url = f"{self._url(collection)}/{name}" if name else self._url(collection)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=_CONNECT_TIMEOUT_S)
        try:
            async with self._open().request(
                _METHODS[verb], url, params=query, timeout=timeout, **options
            ) as response:
                self._read_clock(response)
                content_bytes = await response.read()
                if response.status >= 300:
                    raise _refusal(response, content_bytes)
                answer = orjson.loads(content_bytes)
        except ApiError as error:
            error.tried = tried
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _unanswered(tried, error) from None
        if not isinstance(answer, dict):
            raise _unanswered(tried, ValueError("its answer is not an object"))
        return answer

    def _read_clock(self, response: aiohttp.ClientResponse) -> None:
        try:
            date = parsedate_to_datetime(response.headers.get("Date", ""))
        except ValueError:
            return
        answered_ms = int(date.timestamp() * 1_000)
        if abs(answered_ms - self.now_ms()) > _CLOCK_ERROR_MAX_MS:
            self._clock_base_ms = answered_ms - _monotonic_ms()

    def _url(self, collection: Collection) -> str:
        return f"{self._access.url}{collection.path}"

    def _options(self) -> dict[str, Any]:
        access = self._access
        options: dict[str, Any] = {
            "headers": {"Accept": _JSON, **access.headers()},
            "allow_redirects": False,
        }
        if (tls := access.tls()) is not None:
            options |= {"ssl": tls, "server_hostname": access.server_name}
        return options

    def _open(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise OSError("the connections are closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=_CONNECTIONS, socket_factory=_socket)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=True)
        return self._session


_METHODS: Final[Mapping[str, str]] = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "patch": "PATCH",
    "delete": "DELETE",
}


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _socket(address: Any) -> socket.socket:
    """Returns a socket that notices within 25 s that the API server is away without a word."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    return made


def _selection(selector: str) -> Mapping[str, str]:
    return {"labelSelector": selector} if selector else {}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yields the lines of a stream. The reader's own lines are too short for objects."""
    rest: list[bytes] = []
    async for chunk in content.iter_any():
        *whole, last = chunk.split(b"\n")
        for piece in whole:
            yield b"".join([*rest, piece])
            rest.clear()
        rest.append(last)


def _change(event: Any) -> Change:
    """Returns a change of a watch. Raises ApiError for an error, and ValueError for other data."""
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise ValueError("an event of the watch has no object")
    kind, content = event.get("type"), event["object"]
    if kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        return Change(kind, content)
    if kind == "ERROR":
        raise _status_error(int(content.get("code") or _GONE), content)
    raise ValueError(f"the watch has an event of the unknown type {kind!r}")


def _refusal(response: aiohttp.ClientResponse, content: bytes) -> ApiError:
    try:
        fields = orjson.loads(content)
    except ValueError:
        fields = {}
    if not isinstance(fields, dict) or fields.get("kind") != "Status":
        # The answer of a proxy, and not of the API server.
        text = content.decode(errors="replace").strip()[:_MESSAGE_MAX]
        fields = {"message": f"HTTP {response.status} {text or response.reason}"}
    error = _status_error(response.status, fields)
    retry_after = response.headers.get("Retry-After", "")
    if retry_after.isascii() and retry_after.isdigit():
        error.retry_after_s = float(retry_after)
    return error


def _status_error(status: int, fields: Mapping[str, Any]) -> ApiError:
    message = str(fields.get("message") or "the API server gave no reason")
    return ApiError(status, str(fields.get("reason") or ""), message[:_MESSAGE_MAX])


def _unanswered(tried: str, error: Exception) -> ApiError:
    if isinstance(error, TimeoutError):
        message = "the API server did not answer in time"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLError):
        message = f"the certificate of the API server is refused: {error}"
    else:
        message = f"the API server did not answer: {error or type(error).__name__}"
    unanswered = ApiError(0, "", message)
    unanswered.tried = tried
    return unanswered


async def pause_after(error: ApiError, delay_s: float) -> None:
    """Sleeps before a repetition, and longer if the API server asks for it."""
    await asyncio.sleep(max(delay_s, error.retry_after_s or 0.0))
