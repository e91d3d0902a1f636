"""Start of `pyservice serve`: settings, inherited sockets, and the process of a role."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyservice.app import run_all, run_cdn, run_control, run_data, run_edge_guard, run_node
from pyservice.cli.configuration_check import check_settings, feed_problems
from pyservice.cli.options import fail, load_or_exit
from pyservice.data_formats import FormatsRefused, require_formats, require_restored
from pyservice.process.directory_lock import DirectoryUnusable, make_folder
from pyservice.process.launch import Launch, report_failed_start
from pyservice.process.listening_sockets import ActivationFailed, activated_listeners
from pyservice.process.ready_report import SupervisorLink
from pyservice.settings import ConfigurationReport, Problem, Settings, SettingsError, load

_UMASK: Final = 0o022
"""File mode mask of the service. Game servers run as other users and must read unpacked builds.

Private files have a mode of their own, or are in a private folder.
"""
_UNCHECKED: Final = ConfigurationReport([], [])
_RUN: Final = {
    "all": run_all,
    "data": run_data,
    "control": run_control,
    "cdn": run_cdn,
    "edge-guard": run_edge_guard,
    "node": run_node,
}
_WITH_DATA: Final = ("all", "data", "control")


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
        settings = load(flags, config)
        # The supervisor has judged the files before its children read the settings. Unlike `check-config`,
        # a reload does not ask a cluster for rights: limits must change also while the cluster is away.
        if parent is None:
            problems = check_settings(settings, config).refusals + feed_problems(settings)
            if problems:
                raise SettingsError([Problem("", "", problem) for problem in problems])
        return settings

    configuration = load_or_exit(flags, config)
    # The supervisor has judged the files for its children, which start again after a crash in any case.
    report = check_settings(configuration, config) if parent is None else _UNCHECKED
    if report.problems:
        fail(report.problems)
    inherited = _inherited_listeners(listeners, configuration, role)
    if parent is None:
        try:
            make_folder(configuration.data_dir)
            require = require_formats if role in _WITH_DATA else require_restored
            require(configuration.data_dir)
        except (FormatsRefused, DirectoryUnusable, OSError) as error:
            return report_failed_start(configuration, error)
    # A start goes on, because players without TLS and those of other certificates must not lose the service.
    warnings = [f"{text}; clients reject it" for text in report.invalid_now] + report.warnings
    launch = Launch(configuration, reread, ready_file, parent, warnings, words, inherited)
    if role == "cdn" and parent is None:
        fail(["--role=cdn: the control plane starts this process; use --role=control"])
    return _RUN[role](launch)


def _inherited_listeners(pairs: Sequence[str], settings: Settings, role: str) -> dict[str, int]:
    """Returns the sockets of the supervisor (`NAME:DESCRIPTOR`), or those of systemd."""
    if pairs:
        return {name: int(number) for name, _, number in (pair.partition(":") for pair in pairs)}
    try:
        return activated_listeners(settings, has_edge_guard=role in ("all", "edge-guard", "node"))
    except ActivationFailed as failed:
        fail(failed.problems)
