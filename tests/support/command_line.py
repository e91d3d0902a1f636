"""Runs `pyservice ...` commands beside a running service."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(data_dir: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYSERVICE_")}
    return subprocess.run(
        [sys.executable, "-m", "pyservice", *words, "--data-dir", str(data_dir)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


async def output(data_dir: Path, *words: str) -> str:
    done = await asyncio.to_thread(run, data_dir, *words)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout == "" or done.stdout.endswith("\n")
    return done.stdout.removesuffix("\n")


async def json_output(data_dir: Path, *words: str) -> Any:
    return json.loads(await output(data_dir, *words, "--json"))


async def error_output(data_dir: Path, *words: str) -> str:
    done = await asyncio.to_thread(run, data_dir, *words)
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr
