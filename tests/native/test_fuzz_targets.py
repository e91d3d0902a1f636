"""Fuzzing of the front: no bytes of a connection make it fail, hang, or give a wrong answer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.compiled_programs import ROOT, compiled_program

DURATION_S: Final = 600
INPUT_TIMEOUT_S: Final = 60
OPTIONS: Final = ("-max_len=8192", "-rss_limit_mb=512", "-print_final_stats=1")


@pytest.mark.proof
@pytest.mark.timeout(DURATION_S + 300)
@pytest.mark.parametrize("target", ["http", "grpc"])
def test_fuzzing_finds_no_defect(target: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(ROOT / "native/front/fuzz/corpus" / target, corpus)
    command = [
        str(compiled_program(f"fuzz-{target}")),
        *(f"-max_total_time={DURATION_S}", f"-timeout={INPUT_TIMEOUT_S}", *OPTIONS),
        *(f"-artifact_prefix={tmp_path}/", str(corpus)),
    ]
    completed = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    assert completed.returncode == 0, completed.stderr[-8_000:]
    print(completed.stderr[-1_000:])
