"""Order of the signals that wake Python's event loop."""

from __future__ import annotations

import os
import select
from pathlib import Path

from tests.native.native_engine import NAMESPACE, VERSION, open_engine
from tests.support.waiting import PATIENCE_S


def is_signalled(descriptor: int, timeout_s: float = 0) -> bool:
    readable, _, _ = select.select([descriptor], [], [], timeout_s)
    if readable:
        os.eventfd_read(descriptor)
    return bool(readable)


def test_change_is_signalled_before_the_answer_that_waits_for_it(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "journal", segment_bytes=262_144)
    try:
        for _ in range(200):
            lobby, _, wait = engine.attach(
                NAMESPACE,
                VERSION,
                "duel",
                "local",
                [],
                max_players=(4, 4, 4),
                player_token_ttl_ms=120_000,
                heartbeat_timeout_ms=0,
                heartbeat_grace_ms=10_000,
                is_join_enabled=True,
                create_ts_ms=0,
                lobby_count_max=10,
            )
            if engine.request_wake(wait):
                assert is_signalled(engine.wake_fd(), PATIENCE_S)
                assert is_signalled(engine.change_fd())
            engine.detach([NAMESPACE], lobby)
            while engine.durable() < engine.status().last:
                is_signalled(engine.change_fd(), 0.01)
            is_signalled(engine.change_fd(), 0.01)
    finally:
        engine.close()
