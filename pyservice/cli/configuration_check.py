"""Check of settings and certificates at the start, at SIGHUP and by `check-config`."""

from __future__ import annotations

from pathlib import Path

from pyservice.edge_guard.configuration import edge_guard_report
from pyservice.settings import (
    ConfigurationReport,
    Settings,
    configuration_memory_warning,
    ephemeral_public_ports,
    exposure_warnings,
    lobby_certificate_warning,
)
from pyservice.settings.file_permissions import readable_secrets


def check_settings(settings: Settings, config: Path | None) -> ConfigurationReport:
    """Judges valid settings together with the certificates and the file that they are from."""
    edge, public = edge_guard_report(settings), certificate_report(settings)
    warnings = (
        readable_secrets(config),
        lobby_certificate_warning(settings),
        ephemeral_public_ports(settings),
        configuration_memory_warning(settings),
        *exposure_warnings(settings),
        *edge.warnings,
        *public.warnings,
    )
    return ConfigurationReport(
        edge.problems + public.problems, [warning for warning in warnings if warning is not None]
    )


def certificate_report(settings: Settings) -> ConfigurationReport:
    if settings.tls.cert is None:
        return ConfigurationReport([], [])
    # Its import is slow, and most starts do not need it.
    from pyservice.front import public_certificate

    return public_certificate.certificate_report(settings)
