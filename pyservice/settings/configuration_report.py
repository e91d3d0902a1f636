"""Result of a check of the settings and the files that they name."""

from __future__ import annotations

from typing import NamedTuple


class ConfigurationReport(NamedTuple):
    problems: list[str]
    """A line for each reason why the service must not take these settings."""
    warnings: list[str]
