"""Warning about a disk with blocks that are larger than the alignment of the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pyservice.auth import keyring
from pyservice.dataplane.engine import EngineLimits, open_engine, warn_of_uncovered_block

pytestmark = pytest.mark.anyio


def test_large_disk_block_is_logged_with_the_alignment() -> None:
    with capture_logs() as logs:
        warn_of_uncovered_block((65_536, 16_384))
        warn_of_uncovered_block(None)
    assert logs == [
        {
            "event": "disk blocks are larger than the alignment of the journal",
            "log_level": "warning",
            "block_bytes": 65_536,
            "alignment_bytes": 16_384,
        }
    ]


async def test_usual_disk_needs_no_warning(tmp_path: Path) -> None:
    limits = EngineLimits(segment_bytes=1 << 20)
    engine = open_engine(tmp_path / "journal", keyring.load_or_create(tmp_path), limits)
    sizes = engine.uncovered_block
    await engine.close()
    assert sizes is None or sizes[0] > sizes[1], "only a block above the alignment is reported"
