"""Client of a service's public API, with one token. Waits for a service that restarts."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, BinaryIO, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import (
    HTTPError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ReadTimeoutError,
    SSLError,
    TimeoutError,
)

from pyservice_cli.connections import Connection
from pyservice_cli.failures import (
    CommandFailed,
    OtherService,
    Problem,
    ReadTimedOut,
    Refused,
    Unreachable,
)
from pyservice_cli.local_services import LocalService, is_own_address

CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 60.0
"""Longer than any wait of the service: a long poll returns after 40 s, a find after 45 s."""
PATIENCE_S: Final = 20.0
"""Time that a command waits for a service that restarts."""
_PAUSE_S: Final = 0.2
_BLOCK_BYTES: Final = 256 * 1024
TEMPORARY_STATUSES: Final = (429, 503)
"""Too many requests, and a service that is full or restarts."""
_RAY_HEADER: Final = "x-ray-id"

Progress = Callable[[int], None]
Answer = dict[str, Any]


class Api:
    """Calls of one service. Every method raises Refused and Unreachable."""

    def __init__(self, connection: Connection) -> None:
        self.url = connection.url
        self._token = connection.token
        self._pools = _pools(connection)
        self._has_answered = False

    def get(self, path: str, **query: object) -> Answer:
        given = {name: value for name, value in query.items() if value is not None}
        return self._call("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Answer:
        """Sends a POST. A repeat with the same idempotency key has the effect of one."""
        return self._call("POST", path, body or {}, key)

    def put(self, path: str, body: Mapping[str, Any]) -> Answer:
        return self._call("PUT", path, body)

    def delete(self, path: str, **query: object) -> Answer:
        given = {name: value for name, value in query.items() if value is not None}
        return self._call("DELETE", f"{path}?{urlencode(given)}" if given else path)

    def pages(self, path: str, field: str, **query: object) -> Iterator[Answer]:
        """Yields the entries of all pages of a list."""
        cursor = None
        while True:
            page = self.get(path, cursor=cursor, **query)
            yield from page[field]
            cursor = page.get("cursor")
            if cursor is None:
                return

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer:
        headers = {"accept-encoding": "identity"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        content = None
        if body is not None:
            headers["content-type"] = "application/json"
            content = json.dumps(body).encode()
        if method != "GET":
            # A repeat returns the response of the first attempt.
            headers["idempotency-key"] = key or str(uuid.uuid4())
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                response = self._pools.request(
                    method,
                    self.url + path,
                    body=content,
                    headers=headers,
                    redirect=False,
                    retries=False,
                )
            except HTTPError as error:
                if not self._has_answered or time.monotonic() >= until_s or _is_final(error):
                    raise _unreachable(self.url, error) from None
                time.sleep(_PAUSE_S)
                continue
            if _is_of_proxy(response) and self._has_answered and time.monotonic() < until_s:
                time.sleep(_PAUSE_S)
                continue
            self._has_answered = True
            if response.status in TEMPORARY_STATUSES and time.monotonic() < until_s:
                time.sleep(_retry_after_s(response))
                continue
            return _answer(self.url, response)

    def upload(self, url: str, content: BinaryIO, size: int, progress: Progress) -> None:
        """Sends the next `size` bytes of a file to a presigned URL."""
        blocks = _blocks(content, size, progress)
        headers = {"content-length": str(size)}
        try:
            response = self._pools.request(
                "PUT", url, body=blocks, headers=headers, redirect=False, retries=False
            )
        except HTTPError as error:
            raise _unreachable(url, error) from None
        if _is_of_proxy(response):
            raise _behind_proxy()
        if response.status >= 300:
            # The URL can belong to a store of files, which has other errors.
            raise _refusal(response.status, _content(response) or {})

    def fetch(self, url: str, timeout_s: float = CONNECT_TIMEOUT_S) -> int:
        """Returns the status of a GET without a token, such as that of a game's page."""
        return self.fetch_tag(url, timeout_s)[0]

    def fetch_tag(self, url: str, timeout_s: float = CONNECT_TIMEOUT_S) -> tuple[int, str | None]:
        """Returns the status of a GET without a token, and the entity tag of the file."""
        try:
            response = self._pools.request(
                "GET", url, timeout=timeout_s, redirect=False, retries=False
            )
        except HTTPError as error:
            raise _unreachable(url, error) from None
        return response.status, response.headers.get("etag")


def _pools(connection: Connection) -> urllib3.PoolManager:
    timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S)
    if connection.local is not None:
        pools = urllib3.PoolManager(timeout=timeout)
        checked = _checked_pool(connection.local)
        pools.pool_classes_by_scheme = {**pools.pool_classes_by_scheme, "http": checked}
        return pools
    parts = urlsplit(connection.url)
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.netloc):
        return urllib3.ProxyManager(proxy, timeout=timeout)
    return urllib3.PoolManager(timeout=timeout)


def _checked_pool(service: LocalService) -> type[urllib3.HTTPConnectionPool]:
    class CheckedConnection(HTTPConnection):
        """Connection that is used only if the announced service has accepted it."""

        def connect(self) -> None:
            super().connect()
            # The lock says that the process lives, and its address can have moved to another machine.
            if not (service.is_running() and is_own_address(self.sock.getpeername()[0])):
                self.close()
                raise NewConnectionError(self, "the service has ended")

    class CheckedPool(urllib3.HTTPConnectionPool):
        ConnectionCls = CheckedConnection

    return CheckedPool


def _blocks(content: BinaryIO, size: int, progress: Progress) -> Iterator[bytes]:
    while size and (block := content.read(min(size, _BLOCK_BYTES))):
        size -= len(block)
        yield block
        progress(len(block))


def _retry_after_s(response: urllib3.BaseHTTPResponse) -> float:
    try:
        return max(float(response.headers.get("retry-after", "")), _PAUSE_S)
    except ValueError:
        return _PAUSE_S


def _answer(url: str, response: urllib3.BaseHTTPResponse) -> Answer:
    if 300 <= response.status < 400:
        target = response.headers.get("location", "another address")
        raise OtherService(
            f"{url} redirects to {target}.",
            "Use the address of the service itself, with its scheme.",
        )
    if _is_of_proxy(response):
        raise _behind_proxy()
    content = _content(response)
    # Every response of the service has the header.
    if content is None or _RAY_HEADER not in response.headers:
        kind = response.headers.get("content-type", "no content type")
        raise OtherService(
            f"{url} is not this service: it answered HTTP status {response.status} with {kind}.",
            "Check the address, and the proxy in front of the service.",
        )
    if response.status >= 400:
        raise _refusal(response.status, content)
    return content


def _is_of_proxy(response: urllib3.BaseHTTPResponse) -> bool:
    """Returns whether a proxy answers for a service that does not run."""
    return response.status == HTTPStatus.BAD_GATEWAY and _RAY_HEADER not in response.headers


def _behind_proxy() -> Unreachable:
    return Unreachable(
        "A proxy answers, and does not reach the service: HTTP status 502.",
        "Check that the service runs, and the settings of the proxy.",
    )


def _content(response: urllib3.BaseHTTPResponse) -> Answer | None:
    """Returns the JSON object of a response, or None for other content."""
    try:
        content = json.loads(response.data)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _refusal(status: int, content: Answer) -> CommandFailed:
    if "code" not in content or "detail" not in content:
        return CommandFailed(
            f"The answer is HTTP status {status}, without a code of this service.",
            "Check the proxy in front of the service.",
        )
    problems = [
        Problem(".".join(entry["path"][:-1]), entry["message"])
        for entry in content.get("errors", ())
    ]
    code, detail = str(content["code"]), str(content["detail"])
    title, ray_id = str(content.get("title", code)), str(content.get("ray_id", ""))
    return Refused(status, code, title, detail, problems=problems, ray_id=ray_id)


def _is_final(error: HTTPError) -> bool:
    return isinstance(error, (SSLError, NameResolutionError))


def _unreachable(url: str, error: HTTPError) -> Unreachable:
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}"
    cause: BaseException | None = error.reason if isinstance(error, MaxRetryError) else error
    if isinstance(cause, SSLError) and "WRONG_VERSION_NUMBER" in str(cause):
        return Unreachable(f"{base} does not speak TLS.", f"Use http://{parts.netloc} instead.")
    if isinstance(cause, SSLError):
        return Unreachable(
            f"The certificate of {base} is not accepted: {cause}.",
            "Check the host name, or install the certificate of its issuer on this machine.",
        )
    if isinstance(cause, NameResolutionError):
        return Unreachable(
            f"The host {parts.hostname} is not known.", "Check the address and your network."
        )
    if isinstance(cause, NewConnectionError):
        return Unreachable(
            f"Nothing listens at {base}.", "Check the address, and that the service runs."
        )
    if isinstance(cause, TimeoutError):
        kind = ReadTimedOut if isinstance(cause, ReadTimeoutError) else Unreachable
        return kind(f"{base} did not answer in time.", "Check the address and your network.")
    if isinstance(cause, ProtocolError) and parts.scheme == "http":
        return Unreachable(
            f"{base} closed the connection without an answer.",
            f"If the service has a certificate, use https://{parts.netloc}.",
        )
    return Unreachable(f"{base} cannot be reached: {cause}.", "Check the address and your network.")
