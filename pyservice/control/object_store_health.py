"""Periodic health check of the object store by one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger

_INTERVAL_S: Final = 10.0
_TIMEOUT_S: Final = 3.0

_log = get_logger("control")


class ObjectStoreHealthCheck:
    def __init__(
        self,
        request: Callable[[], Awaitable[None]],
        location: str,
        *,
        interval_s: float = _INTERVAL_S,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`request` asks the store and raises ServiceError. `location` names the store."""
        self._request = request
        self._location = location
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self.job = RetryingJob(
            "object_store",
            "object store check failed",
            TimeoutError,
            pauses_s=(interval_s, interval_s),
        )
        self.problem = ""

    async def run(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(self._interval_s)

    async def check(self) -> None:
        error = await self.job.attempt(self._request_in_time)
        before = self.problem
        if error is None:
            self.problem = ""
            if before:
                _log.info("object store healthy again", store=self._location)
            return
        reason = self._reason(error)
        self.problem = f"{self._location} cannot be used: {reason}"
        if not before:
            _log.warning("object store unhealthy", store=self._location, reason=reason)

    def _reason(self, error: Exception) -> str:
        match error:
            case TimeoutError():
                return f"no answer in {self._timeout_s:g} s"
            case ServiceError():
                return error.detail
        return "see the log"

    async def _request_in_time(self) -> None:
        async with asyncio.timeout(self._timeout_s):
            await self._request()
