"""The service of `pyservice dev`: one that runs already, or one that ends with the command."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyservice_cli.connections import LOCAL, URL_VARIABLE, Connection, find_connection
from pyservice_cli.failures import CommandFailed, NotLoggedIn
from pyservice_cli.interrupts import uninterrupted
from pyservice_cli.local_services import LocalService, running_services
from pyservice_cli.terminal import Terminal

LOG: Final = "service.log"
_DATA: Final = "service"
_LISTENERS: Final = ("http", "grpc", "cdn", "metrics")
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05


@contextlib.contextmanager
def development_service(
    terminal: Terminal, work_folder: Path, profile: str | None
) -> Iterator[Connection]:
    """Yields the service that the profile or the environment names, or the one of this machine.

    Starts one if none runs, and stops it at the end. Its data is in the work folder.
    """
    is_named = profile is not None or URL_VARIABLE in os.environ
    if is_named or running_services():
        yield find_connection(profile if is_named else LOCAL)
        return
    if importlib.util.find_spec("pyservice") is None:
        raise NotLoggedIn(
            "No service runs on this machine for this user, and `pyservice serve` is not installed.",
            "Install the distribution pyservice, or name a service with --profile.",
        )
    terminal.say("Starting a service …")
    process = None
    try:
        with uninterrupted():
            process = _start(work_folder)
        service = _wait_until_announced(process, work_folder / LOG)
        yield Connection(service.url, service.token(), LOCAL, service)
    finally:
        if process is not None:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(work_folder: Path) -> subprocess.Popen[bytes]:
    """Starts a service at free ports. It does not get the Ctrl-C of the terminal."""
    command = [sys.executable, "-m", "pyservice_cli", "serve"]
    command += ["--data-dir", str(work_folder / _DATA)]
    command += ["--set", "runtime.end_with_service=true"]
    command += [f"--{name}=127.0.0.1:0" for name in _LISTENERS]
    with (work_folder / LOG).open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )


def _wait_until_announced(process: subprocess.Popen[bytes], log: Path) -> LocalService:
    until_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until_s:
        for service in running_services():
            if service.announcement.stem == str(process.pid):
                return service
        if process.poll() is not None:
            lines = log.read_text(errors="replace").strip().splitlines() or ["It wrote no line."]
            raise CommandFailed(
                f"The service ended with exit status {process.returncode}: {lines[-1]}",
                f"Its log is {log}.",
            )
        time.sleep(_POLL_S)
    raise CommandFailed(
        f"The service is not ready after {_START_TIMEOUT_S:.0f} s.", f"Its log is {log}."
    )
