"""Result of a check of the settings and the files that they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ConfigurationReport(NamedTuple):
    problems: list[str]
    """A line for each reason why the service must not take these settings."""
    warnings: list[str]
    invalid_now: Sequence[str] = ()
    """A line for each certificate that has expired, or is not valid yet.

    A start warns of them, because other certificates and ports without TLS work. `check-config` and
    SIGHUP refuse them.
    """

    @property
    def refusals(self) -> list[str]:
        """Why `check-config` and SIGHUP refuse these settings."""
        return [*self.problems, *self.invalid_now]
