"""HTTP client of the hosting service. It needs only the standard library."""

import asyncio
import contextlib
import http.client
import json
import random
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

ATTEMPT_TIMEOUT_S = 3.0
# The server rejects a player if `connected` takes longer. So the connection is closed within 10 s.
CONFIRM_TIMEOUT_S = 9.5
RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 2.0

# With these statuses the outcome is unknown: repeat the call under the same idempotency key.
UNDECIDED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
ANSWER_BYTES_MAX = 1 << 20


class ServiceAway(Exception):
    """The outcome of a call is unknown: no complete response, or a status that asks for a retry."""

    def __init__(self, cause: str, retry_after_s: float = 0.0) -> None:
        super().__init__(cause)
        self.retry_after_s = retry_after_s


class ServiceRefused(Exception):
    """The service rejected a call. A retry would get the same error."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class ApiResponse:
    status: int
    headers: Mapping[str, str]
    body: bytes


def retry_pauses_s() -> "Pauses":
    return Pauses(RETRY_FIRST_S, RETRY_LONGEST_S)


class Pauses:
    """Growing pauses with jitter, so that lobbies do not retry at the same instant."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._next_s = first_s
        self._longest_s = longest_s

    def take(self) -> float:
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._longest_s)
        return pause_s


class Connections:
    """Thread-safe pool of kept-alive connections to one origin."""

    def __init__(self, api_url: str) -> None:
        url = urlsplit(api_url)
        if url.scheme not in ("http", "https") or url.hostname is None:
            raise ValueError("the address of the API must begin with http:// or https://")
        self._is_tls = url.scheme == "https"
        self._host = url.hostname
        self._port = url.port
        self._path_prefix = url.path.rstrip("/")
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._is_closed = False
        self._lock = threading.Lock()

    def request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> ApiResponse:
        connection, is_reused = self._take(timeout_s)
        try:
            answer = self._exchange(connection, method, path, body, headers)
        except ConnectionError as error:
            self._drop(connection)
            # The service may have closed the idle connection. The idempotency key makes a repeat safe.
            if is_reused:
                return self.request(method, path, body, headers, timeout_s)
            raise ServiceAway(type(error).__name__) from error
        except (OSError, http.client.HTTPException) as error:
            self._drop(connection)
            raise ServiceAway(type(error).__name__) from error
        return answer

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> ApiResponse:
        connection.request(method, self._path_prefix + path, body, dict(headers))
        response = connection.getresponse()
        content = response.read(ANSWER_BYTES_MAX)
        # Reuse a connection only after its response was read to the end.
        if response.isclosed() and not response.will_close:
            self._give_back(connection)
        else:
            self._drop(connection)
        return ApiResponse(
            response.status, {k.lower(): v for k, v in response.getheaders()}, content
        )

    def _take(self, timeout_s: float) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._is_closed:
                raise ServiceAway("closed")
            is_reused = bool(self._idle)
            connection = self._idle.pop() if is_reused else self._new_connection()
            self._busy.add(connection)
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        return connection, is_reused

    def _new_connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        return kind(self._host, self._port)

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._busy.discard(connection)
            if not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            sockets = [connection.sock for connection in self._busy if connection.sock is not None]
        for connection in idle:
            connection.close()
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(2)


class HostingClient:
    """Async calls with one bearer token. `outages` counts the calls with an unknown outcome."""

    def __init__(self, api_url: str, bearer_token: str, calls_at_once: int = 16) -> None:
        self.outages = 0
        self._authorization = f"Bearer {bearer_token}"
        self._connections = Connections(api_url)
        self._threads = ThreadPoolExecutor(calls_at_once, thread_name_prefix="hosting")

    async def call(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        idempotency_key: str | None = None,
        timeout_s: float = ATTEMPT_TIMEOUT_S,
    ) -> Any:
        headers = {
            "authorization": self._authorization,
            "content-type": "application/json",
            "idempotency-key": idempotency_key or str(uuid.uuid4()),
        }
        attempt = asyncio.get_running_loop().run_in_executor(
            self._threads, self._connections.request, method, path, body, headers, timeout_s
        )
        try:
            # Do not use asyncio.wait_for: in Python 3.11 it can swallow a cancellation.
            async with asyncio.timeout(timeout_s):
                answer = await attempt
            return _decision(answer)
        except TimeoutError:
            self.outages += 1
            raise ServiceAway(f"no answer within {timeout_s:.1f} s") from None
        except ServiceAway:
            self.outages += 1
            raise

    async def confirm_player(
        self, player_token: str, idempotency_key: str, within_s: float = CONFIRM_TIMEOUT_S
    ) -> None:
        """Repeats `players/connected` until its outcome is known.

        Raises `ServiceRefused`, or `ServiceAway` after `within_s`. After `ServiceAway` the slot may be
        marked as connected, so release the player.
        """
        deadline_s = time.monotonic() + within_s
        pauses = retry_pauses_s()
        body = json.dumps({"player_token": player_token}).encode()
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.001)
            try:
                await self.call(
                    "POST",
                    "/matchmaker/players/connected",
                    body,
                    idempotency_key=idempotency_key,
                    timeout_s=min(ATTEMPT_TIMEOUT_S, left_s),
                )
                return
            except ServiceAway as away:
                pause_s = max(pauses.take(), away.retry_after_s)
                if time.monotonic() + pause_s >= deadline_s:
                    raise
                await asyncio.sleep(pause_s)

    def close(self) -> None:
        self._connections.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _decision(answer: ApiResponse) -> Any:
    if answer.status == 200:
        try:
            return json.loads(answer.body)
        except ValueError:
            raise ServiceAway("an answer that is not JSON") from None
    if answer.status in UNDECIDED_STATUSES:
        raise ServiceAway(f"status {answer.status}", _retry_after_s(answer))
    code, detail = "UNKNOWN", ""
    with contextlib.suppress(ValueError):
        problem = json.loads(answer.body)
        if isinstance(problem, dict):
            code, detail = str(problem.get("code", code)), str(problem.get("detail", ""))
    raise ServiceRefused(answer.status, code, detail)


def _retry_after_s(answer: ApiResponse) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0
