"""Environment, flags and ready file of `pyservice` processes in tests."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.waiting import POLL_S

START_TIMEOUT_S: Final = 120.0


def clean_environment(**more: str) -> dict[str, str]:
    """Returns the environment without settings of the service, plus `more`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYSERVICE_")}
    return clean | more


def set_flags(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields the `--set` flags of nested settings."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from set_flags(value, f"{prefix}{name}.")
        else:
            yield from ("--set", f"{prefix}{name}={_text(value)}")


def set_variables(settings: Mapping[str, Any], prefix: str = "PYSERVICE_") -> dict[str, str]:
    """Returns the environment variables of nested settings."""
    variables: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            variables |= set_variables(value, f"{prefix}{name.upper()}__")
        else:
            variables[f"{prefix}{name.upper()}"] = _text(value)
    return variables


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | tuple) else str(value)


def wait_ready_file(
    process: subprocess.Popen[Any], ready_file: Path, log: Callable[[], str]
) -> dict[str, Any]:
    """Returns the content of the ready file. Fails with the log if the process exits first."""
    end = time.monotonic() + START_TIMEOUT_S
    while not ready_file.exists():
        assert process.poll() is None, f"exit {process.returncode}:\n{log()}"
        assert time.monotonic() < end, f"not ready:\n{log()}"
        time.sleep(POLL_S)
    addresses: dict[str, Any] = json.loads(ready_file.read_text())
    return addresses
