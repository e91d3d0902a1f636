"""Check of `cloud_` tokens through a request to the control plane. Results are cached for 0.9 s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from time import perf_counter
from typing import Final, NamedTuple
from uuid import UUID

from pyservice.calls import InternalCalls, Scope
from pyservice.errors import ServiceError, Unreachable
from pyservice.observability.rays import note
from pyservice.pb.hosting.internal.v1 import control_pb2

_CHECK: Final = "hosting.internal.v1.Control.CheckToken"
_TIMEOUT_S: Final = 2.0
_RECONNECT_S: Final = 0.5
_RETRY_S: Final = 0.1
_CACHE_TTL_S: Final = 0.9
"""A cached token expires after this time, so that a revocation takes effect within a second."""
_CACHE_MAX: Final = 20_000


class _CheckResult(NamedTuple):
    scope: Scope
    reaches_game: bool
    found_at: float


class CloudTokenCheck:
    def __init__(
        self, client: InternalCalls, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._now_s = clock_s
        self._cache: dict[tuple[str, bytes], _CheckResult] = {}

    async def scope(self, token: str) -> Scope:
        """Returns the scope of a `cloud_` token: the groups or the game that it gives access to."""
        return (await self._check(token, b"")).scope

    async def reaches(self, token: str, game_id: bytes) -> bool:
        return (await self._check(token, game_id)).reaches_game

    async def _check(self, token: str, game_id: bytes) -> _CheckResult:
        key = (token, game_id)
        cached = self._cache.get(key)
        if cached is not None and self._now_s() - cached.found_at <= _CACHE_TTL_S:
            return cached
        # The age of a cache entry counts from the request, because the response may be late.
        requested_at = self._now_s()
        self._cache.pop(key, None)
        request = control_pb2.CheckTokenRequest(
            token=token, game_id=str(UUID(bytes=game_id)) if game_id else None
        )
        began = perf_counter()
        try:
            response = await self._request(request)
        finally:
            note("token check", began)
        scope = Scope(
            response.identity_id,
            response.token_id,
            response.group_id if response.HasField("group_id") else None,
            response.game_id if response.HasField("game_id") else None,
        )
        result = _CheckResult(scope, response.reaches_game, requested_at)
        if len(self._cache) >= _CACHE_MAX:
            self._cache.clear()
        self._cache[key] = result
        return result

    async def _request(
        self, request: control_pb2.CheckTokenRequest
    ) -> control_pb2.CheckTokenResponse:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _RECONNECT_S
        while True:
            try:
                response: control_pb2.CheckTokenResponse = await self._client.call(
                    _CHECK, request, _TIMEOUT_S
                )
            except Unreachable:
                if loop.time() >= end_s:
                    raise ServiceError(
                        "CONTROL_PLANE_UNAVAILABLE",
                        "cloud_ tokens are checked by the control plane, which does not answer; "
                        "use env_, or try again.",
                    ) from None
                await asyncio.sleep(_RETRY_S)
            else:
                return response
