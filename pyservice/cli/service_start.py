"""Start of `pyservice serve`: settings, inherited sockets, and the process of a role."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyservice.app import run_all, run_cdn, run_control, run_data, run_edge_guard
from pyservice.cli.options import fail, load_or_exit
from pyservice.process.launch import Launch
from pyservice.process.listening_sockets import ActivationFailed, activated_listeners
from pyservice.process.ready_report import SupervisorLink
from pyservice.settings import Settings, load
from pyservice.settings.file_permissions import readable_secrets

_UMASK: Final = 0o022
"""File mode mask of the service. Game servers run as other users and must read unpacked builds.

Private files have a mode of their own, or are in a private folder.
"""
_RUN: Final = {
    "all": run_all,
    "data": run_data,
    "control": run_control,
    "cdn": run_cdn,
    "edge-guard": run_edge_guard,
}


def serve(
    role: str,
    flags: dict[str, Any],
    config: Path | None,
    ready_file: Path | None,
    child_of: str | None,
    words: Sequence[str],
    listeners: Sequence[str],
) -> int:
    """Runs a role until its end and returns the exit status.

    `words` are the flags for child processes. `child_of` and `listeners` come from the supervisor.
    """
    os.umask(_UMASK)
    parent = None if child_of is None else SupervisorLink.parse(child_of)

    def reread() -> Settings:
        return load(flags, config)

    warning = readable_secrets(config) if parent is None else None
    configuration = load_or_exit(flags, config)
    inherited = _inherited_listeners(listeners, configuration)
    launch = Launch(configuration, reread, ready_file, parent, warning, words, inherited)
    if role == "cdn" and parent is None:
        fail(["--role=cdn: the control plane starts this process; use --role=control"])
    return _RUN[role](launch)


def _inherited_listeners(pairs: Sequence[str], settings: Settings) -> dict[str, int]:
    """Returns the sockets of the supervisor (`NAME:DESCRIPTOR`), or those of systemd."""
    if pairs:
        return {name: int(number) for name, _, number in (pair.partition(":") for pair in pairs)}
    try:
        return activated_listeners(settings)
    except ActivationFailed as failed:
        fail(failed.problems)
