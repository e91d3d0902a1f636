"""While the control plane starts it is away: what it does not know yet is no reason to refuse anything for good."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests import programs
from tests.control.test_servers import back_end
from tests.faults.control.struck import LOCKS
from tests.household import House, eventually, running
from tests.programs import images

pytestmark = [pytest.mark.anyio, images.needs_oci_runtime]

HELD = """#!/bin/sh
if [ -p {gate} ]; then : > {asked}; read _ < {gate}; fi
exec crun "$@"
"""


async def test_a_server_that_is_wanted_while_it_looks_what_it_can_run_is_wanted_again_later(
    tmp_path: Path,
) -> None:
    """What runs containers here is tried at each start; this one waits until it is let go on."""
    gate, asked, runtime = (tmp_path / name for name in ("gate", "asked", "crun-held"))
    runtime.write_text(HELD.format(gate=gate, asked=asked))
    runtime.chmod(0o755)
    settings = {**programs.SETTINGS, "kinds": images.KINDS, "oci_runtime": str(runtime)}
    with running(House(tmp_path / "house", runtime=settings)) as house:
        async with back_end(house, "http") as back:
            os.mkfifo(gate)
            os.kill(int((house.data_dir / LOCKS["control"]).read_text()), signal.SIGKILL)

            async def is_asked() -> bool:
                return asked.exists()

            await eventually(is_asked)
            asking = asyncio.create_task(back.try_create())
            # Whoever knew no better would have answered by then.
            await asyncio.wait({asking}, timeout=0.5)
            with gate.open("w"):
                gate.unlink()
            answer = await asking
            while answer.code == "CONTROL_PLANE_UNAVAILABLE":
                answer = await back.try_create()
            assert answer.code == "OK", answer
