from __future__ import annotations

import time

import pytest

from tests.support.waiting import eventually, within

pytestmark = pytest.mark.anyio


async def test_check_returns_its_value_or_fails_at_last() -> None:
    calls = 0

    async def third() -> int:
        nonlocal calls
        calls += 1
        return calls // 3

    async def never() -> bool:
        return False

    assert await eventually(third) == 1
    with pytest.raises(AssertionError, match="not within"):
        await eventually(never, 0.05)


def test_slow_block_fails() -> None:
    with pytest.raises(AssertionError, match="more than"), within(0.01):
        time.sleep(0.02)
