"""Reasons why the program of a game server ended, each as one sentence for the developer.

They come from the exit code, the end of the log and the measured memory.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from pyservice.runtime.process_environment import port_variables
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.run_layout import StoredRun
from pyservice.runtime.run_logs import EMPTY_SPAN, read_backward
from pyservice.runtime.run_requests import LobbyProgress, RunEnd, RunPlacement, RunRequest
from pyservice.runtime.start_problems import RunProblem, start_timeout_problem

NO_PORTS: Final[Mapping[str, str]] = MappingProxyType({})
_LINES: Final = 40
_READ_BYTES: Final = 64 << 10
"""Bytes at the end of a log that are read for its last lines."""
_NAME_MAX: Final = 200
_SIGNALED: Final = 128
_PYTHON_LINES: Final = 5
"""Lines at the end of which one names the module. A traceback of Python ends with it."""
_PYTHON_MODULE: Final = re.compile(
    r"(?:ModuleNotFoundError: |ImportError: |\S+: )No module named '?([^\s';]+)"
)
_NODE_MODULE: Final = re.compile(
    r"(?:\w*Error(?: \[\w+\])?: )Cannot find (?:module|package) '([^']+)'"
)
_JAVA_CLASS: Final = re.compile(
    r'(?:Caused by: |Exception in thread "[^"]*" )'
    r"java\.lang\.(?:ClassNotFoundException|NoClassDefFoundError): (\S+)"
)
_MEASURED_MEMORY: Final = re.compile(r"used (\d+) bytes of memory")
"""Message of a keeper that has ended its program for its memory."""
_BINDS: Final = re.compile(r"\b(?:bind|listen)\b")
_DENIED: Final = re.compile(r"\bEPERM\b|\bEACCES\b|[Oo]peration not permitted|[Pp]ermission denied")
"""A refused bind: lines with both. Python and Java name the call in another line."""
_NO_SPACE: Final = re.compile(r"No space left on device|\bENOSPC\b")


FAILED_STARTS: Final = (
    *("build_unusable", "capacity", "exec_failed", "exited", "killed", "lost", "no_ports"),
    *("out_of_disk", "out_of_memory", "start_timeout", "tier_unknown"),
)
"""Reasons of failed starts, as labels of a metric."""


def failed_start(end: RunEnd, progress: LobbyProgress | None) -> str | None:
    """Returns why the start of a run failed, or None if it did not fail.

    The start of a lobby also fails if its program ends before the lobby is ready.
    """
    if end.started_ms is None:
        return None if end.reason == "stopped" else end.reason
    if progress is None or progress.is_ready:
        return None
    if progress.start_timeout_s is not None:
        return "start_timeout"
    return None if end.reason == "stopped" else end.reason


class ProgramOutput(NamedTuple):
    """Output and settings of a program that has ended."""

    errors: Sequence[str] = ()
    """Its last lines of `std_err`."""
    scratch_mb: int = 0
    """Size of its scratch folder, if a write beyond it fails with `ENOSPC`."""
    ports: Mapping[str, str] = NO_PORTS
    """Variables of its ports."""


def end_problem(
    end: RunEnd,
    parameters: RunRequest | RunPlacement,
    progress: LobbyProgress | None,
    read_output: Callable[[], ProgramOutput],
    *,
    peak_memory_bytes: int | None = None,
    ports_problem: str | None = None,
) -> RunProblem | None:
    """Returns why a program ended as it did, or None if no reason is known.

    `progress` is None for a server, which has no ready.
    """
    if end.reason == "out_of_disk":
        return RunProblem("disk-full", end.message)
    if end.reason == "out_of_memory":
        used_bytes = peak_memory_bytes or _measured_bytes(end.message)
        return RunProblem(
            "out-of-memory", _memory_sentence(used_bytes, parameters.resources.memory_mb)
        )
    if end.reason not in ("exited", "killed", "stopped") or end.started_ms is None:
        return None
    if progress is not None and progress.start_timeout_s is not None:
        return start_timeout_problem(progress.start_timeout_s, ports_problem, parameters.adapter)
    problem = None
    if end.reason != "stopped":
        output = read_output()
        problem = exit_problem(
            end.exit_code, output.errors, progress, output.scratch_mb, output.ports
        )
    if problem is None and ports_problem is not None:
        return RunProblem("nothing-listens", ports_problem)
    return problem


def stored_output(stored_run: StoredRun) -> ProgramOutput:
    """Returns the output of a program of this machine. An unreadable folder has none."""
    output = ProgramOutput()
    # Without the log and the spec, the exit code still says something.
    with contextlib.suppress(OSError):
        output = output._replace(errors=_last_errors(stored_run.folder))
        output = output._replace(scratch_mb=stored_run.scratch_mb())
        placement = stored_run.placement()
        if placement is not None:
            output = output._replace(ports=numbered_ports(placement))
    return output


def numbered_ports(placement: RunPlacement) -> Mapping[str, str]:
    """Returns the numbers of the ports that a run was given, by name of the variable."""
    variables = port_variables(placement.ports)
    return {name: number for name, number in variables.items() if name != "PORT"}


def _measured_bytes(message: str) -> int | None:
    """Returns the memory that a keeper measured before it ended its program."""
    measured = _MEASURED_MEMORY.match(message)
    return None if measured is None else int(measured[1])


def _last_errors(folder: RunFolder) -> list[str]:
    """Returns the last lines of `std_err` in the log of a run. Raises OSError."""
    scan = read_backward(folder.path, "std_err", None, _LINES, EMPTY_SPAN, _READ_BYTES)
    return [line.text for line in scan.lines]


def exit_problem(
    exit_code: int | None,
    errors: Sequence[str],
    progress: LobbyProgress | None,
    scratch_mb: int = 0,
    ports: Mapping[str, str] = NO_PORTS,
) -> RunProblem | None:
    """Returns why a program that ended by itself did so, or None if that is not an error.

    `errors` are its last lines of `std_err`. `progress` is None for a server, which has no ready.
    """
    if exit_code:
        missing = _missing_module(errors)
        if missing is not None:
            return RunProblem("missing-module", missing)
        if ports and all(any(map(one.search, errors)) for one in (_BINDS, _DENIED)):
            return RunProblem("bind-denied", _bind_sentence(ports))
        if scratch_mb and any(_NO_SPACE.search(line) for line in errors):
            return RunProblem("scratch-full", scratch_sentence(scratch_mb))
    if progress is None or exit_code is None or (progress.is_ready and not exit_code):
        return None
    before = "" if progress.is_ready else " before the lobby was ready"
    return RunProblem("exited", f"The program exited with code {_code_text(exit_code)}{before}.")


def _missing_module(errors: Sequence[str]) -> str | None:
    lines = [line.strip() for line in errors if line.strip()]
    for line in reversed(lines[-_PYTHON_LINES:]):
        if found := _PYTHON_MODULE.match(line):
            return _missing_sentence(found[1], " (build.python_requirements)")
    for line in reversed(lines):
        if found := _NODE_MODULE.match(line) or _JAVA_CLASS.match(line):
            return _missing_sentence(found[1], "")
    return None


def _missing_sentence(module: str, setting: str) -> str:
    return f"The module {module[:_NAME_MAX]} is missing: add it to the build{setting}"


def _bind_sentence(ports: Mapping[str, str]) -> str:
    own = " or ".join(f"${name}, which is {number}" for name, number in ports.items())
    return f"The server may not bind this port: bind {own}"


def scratch_sentence(scratch_mb: int) -> str:
    setting = "`build.scratch_mb` in hosting.toml, `scratch_mb` in server.json"
    remedy = f"write less, or set a larger value ({setting}) or a tier with a larger disk"
    return f"The scratch folder is full ({scratch_mb} MiB): {remedy}"


def _memory_sentence(used_bytes: int | None, limit_mb: int) -> str:
    remedy = "choose a larger tier, or use less memory"
    # A kernel that ends a program at its limit may have counted a little less.
    used_mb = limit_mb if used_bytes is None else -(-used_bytes >> 20)
    return f"The server used {used_mb} MiB of its {limit_mb} MiB: {remedy}"


def _code_text(code: int) -> str:
    try:
        return f"{code} ({signal.Signals(code - _SIGNALED).name})"
    except ValueError:
        return str(code)
