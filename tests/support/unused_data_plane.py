"""A data plane that fails the test if it is called."""

from __future__ import annotations

from typing import Any


class UnusedDataPlane:
    async def read_facts(self, request: Any) -> Any:
        raise AssertionError

    async def slot_counts(self, lobby_ids: Any, sessions: Any = None) -> Any:
        raise AssertionError
