"""The client of the hosting service: one HTTP call at a time per connection, and what its outcome
means.

`http.client` in threads of our own, with connections kept alive: a lobby makes a few calls a second
at most, the standard library already knows framing, chunking and TLS, and a build then needs
nothing but Python and `websockets`. Which calls a lobby owes the service, and when, is in lobby.py.
"""

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
# A `connected` call that takes longer counts as failed, even if the service processes it later.
CONFIRM_TIMEOUT_S = 10.0
RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 2.0

# The service gave no decision: the same call may be made again.
UNDECIDED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
ANSWER_BYTES_MAX = 1 << 20


class ServiceAway(Exception):
    """No decision: the service cannot be reached, does not answer, or asks for another try."""

    def __init__(self, cause: str, retry_after_s: float = 0.0) -> None:
        super().__init__(cause)
        self.retry_after_s = retry_after_s


class ServiceRefused(Exception):
    """The service decided against the call; asking again will not help."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def retry_pauses_s() -> "Pauses":
    return Pauses(RETRY_FIRST_S, RETRY_LONGEST_S)


class Pauses:
    """Growing pauses with jitter, so that lobbies do not all come back at the same instant."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._next_s = first_s
        self._longest_s = longest_s

    def take(self) -> float:
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._longest_s)
        return pause_s


class Connections:
    """Kept-alive connections to one origin, used from several threads. Blocking; `HostingClient` is
    the async face.
    """

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
    ) -> Answer:
        """Raises `ServiceAway` when there is no complete answer."""
        connection, is_reused = self._take(timeout_s)
        try:
            answer = self._exchange(connection, method, path, body, headers)
        except ConnectionError as error:
            self._drop(connection)
            # The service closes idle connections; a reused one may have ended since. All our calls
            # may be repeated.
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
    ) -> Answer:
        connection.request(method, self._path_prefix + path, body, dict(headers))
        response = connection.getresponse()
        content = response.read(ANSWER_BYTES_MAX)
        # Only a connection whose answer was read to its end can carry another one.
        if response.isclosed() and not response.will_close:
            self._give_back(connection)
        else:
            self._drop(connection)
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, content)

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
        """End all connections. Calls under way fail at once: no thread outlives the server."""
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
    """Calls to the hosting service under one bearer token.

    `outages` counts the calls that found no decision: who owes the service a declaration compares
    it (lobby.py).
    """

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
        """One attempt. Returns the decoded answer; raises `ServiceAway` or `ServiceRefused`."""
        headers = {
            "authorization": self._authorization,
            "content-type": "application/json",
            "idempotency-key": idempotency_key or str(uuid.uuid4()),
        }
        attempt = asyncio.get_running_loop().run_in_executor(
            self._threads, self._connections.request, method, path, body, headers, timeout_s
        )
        try:
            # The timeout of the socket bounds one read; this bounds the wait for a free thread and
            # all reads.
            # Not wait_for: in Python 3.11 it swallows a cancellation that meets the answer, and the
            # lobby would never end.
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
        """`players.connected`, tried again until the service decides.

        Raises `ServiceRefused`, or `ServiceAway` when `within_s` has passed. In the second case the
        service may or may not have marked the slot: the caller releases the player.
        """
        deadline_s = time.monotonic() + within_s
        pauses = retry_pauses_s()
        body = json.dumps({"player_token": player_token}).encode()
        while True:
            # A sleep may have ended a little late; a timeout must still be positive.
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


def _decision(answer: Answer) -> Any:
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


def _retry_after_s(answer: Answer) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0
