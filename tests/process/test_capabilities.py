"""Rights of a process that drops its capabilities."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to drop")

SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
DROP_AND_READ = """
import sys
from pathlib import Path
from pyservice.process.capabilities import drop_capabilities
folder = Path(sys.argv[1])
drop_capabilities()
assert (folder / "file").read_text() == "content"
print(Path("/proc/self/status").read_text())
"""


def test_only_the_right_to_files_of_other_users_remains(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "file").write_text("content")
    os.chown(folder, 65_534, 65_534)
    ended = subprocess.run(
        [sys.executable, "-c", DROP_AND_READ, folder], capture_output=True, text=True, check=True
    )
    fields = dict(line.split(":\t") for line in ended.stdout.splitlines() if ":\t" in line)
    found = {name: int(fields[name], 16) for name in SETS}
    assert found == dict.fromkeys(SETS, 0) | dict.fromkeys(("CapPrm", "CapEff", "CapBnd"), 1 << 1)
