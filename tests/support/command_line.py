"""Commands `pyservice ...` beside a running service, as a process or inside this process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from typer.testing import CliRunner

from pyservice.cli import admin_requests, commands
from tests.support.service_process import clean_environment

_ONE_AT_A_TIME: Final = threading.Lock()
"""A command inside this process replaces `sys.stdout`."""


def run(data_dir: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyservice", *words, "--data-dir", str(data_dir)],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


async def invoke(data_dir: Path, *words: str) -> tuple[int, str, str]:
    """Runs an administrative command in a thread. Returns its exit code, output and errors."""
    loop = asyncio.get_running_loop()
    # gRPC supports one event loop in a process, so the command's request runs on the test's loop.
    on_loop = SimpleNamespace(
        run=lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
    )
    unset = {name: None for name in os.environ if name.startswith("PYSERVICE_")}

    def run_command() -> tuple[int, str, str]:
        with _ONE_AT_A_TIME, patch.object(admin_requests, "asyncio", on_loop):
            result = CliRunner().invoke(
                commands.app, [*words, "--data-dir", str(data_dir)], env=unset
            )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return await asyncio.to_thread(run_command)


async def output(data_dir: Path, *words: str) -> str:
    code, out, errors = await invoke(data_dir, *words)
    assert (code, errors) == (0, ""), (words, out, errors)
    assert out == "" or out.endswith("\n")
    return out.removesuffix("\n")


async def json_output(data_dir: Path, *words: str) -> Any:
    return json.loads(await output(data_dir, *words, "--json"))


async def error_output(data_dir: Path, *words: str) -> str:
    code, out, errors = await invoke(data_dir, *words)
    assert (code, out) == (1, ""), (words, out, errors)
    return errors
