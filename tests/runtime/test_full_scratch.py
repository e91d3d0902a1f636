"""Running game servers with a full scratch folder are named once, in the log and in the record."""

from __future__ import annotations

import pytest

from pyservice.runtime.full_scratch import FullScratch
from tests.runtime.test_scratch_folders import limited
from tests.support.runtime_host import RuntimeHost, until

pytestmark = [pytest.mark.anyio, pytest.mark.full]

FILL = 'head -c 10G /dev/zero >"$HOME/big" 2>/dev/null; echo full; exec sleep 3600'


async def test_full_folder_is_named_while_the_program_runs(host: RuntimeHost) -> None:
    await limited(host, host.folder / "servers")
    full = await host.running(FILL, disk_mb=16)
    other = await host.running(disk_mb=16)
    assert await host.lines(full, 1) == ["full"]
    scratch = FullScratch()
    for _ in range(2):
        await scratch.check(host.supervisor.runs)
    sentence = scratch.problem(full.id)
    assert sentence is not None
    assert sentence.startswith("The scratch folder is full (16 MiB): write less, or ")
    assert scratch.problem(other.id) is None

    def service_lines() -> list[str]:
        return [line.text for line in host.of(full).lines() if line.stream == "service"]

    await until(lambda: service_lines() == [sentence])
    host.supervisor.end(full.id, 0)
    await host.reports.end(full.id)
    await until(lambda: full.id not in host.supervisor.runs)
    await scratch.check(host.supervisor.runs)
    assert (scratch.problem(full.id), service_lines()) == (None, [sentence])
