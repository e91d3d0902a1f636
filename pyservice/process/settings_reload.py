"""Settings that are read again after SIGHUP."""

from __future__ import annotations

from collections.abc import Callable

from pyservice.observability.logging import get_logger
from pyservice.settings import Settings, SettingsError
from pyservice.settings.model import unapplied_changes

_log = get_logger("service")


def reread_settings(
    reread: Callable[[], Settings], started: Settings, *, names_unapplied: bool
) -> Settings | None:
    """Reads the settings again after SIGHUP. Logs problems and returns None if there are any.

    With `names_unapplied`, also logs the changes since `started` that need a restart. One of the two
    planes does so.
    """
    try:
        settings = reread()
    except SettingsError as error:
        for problem in error.problems:
            _log.error("settings not reloaded", problem=str(problem))
        return None
    names = unapplied_changes(started, settings) if names_unapplied else []
    if names:
        _log.warning("changed settings need a restart", names=names)
    return settings
