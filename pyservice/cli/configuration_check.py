"""Check of settings, certificates and the feed file at the start, at SIGHUP and by `check-config`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

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
from pyservice.settings.machine_capacity import capacity_warnings

_UNLIMITED: Final = (1 << 32) - 1
_ALL_PORTS: Final = range(1, 1 << 16)


def check_settings(settings: Settings, config: Path | None) -> ConfigurationReport:
    """Judges valid settings together with the certificates and the file that they are from."""
    edge, public = edge_guard_report(settings), certificate_report(settings)
    warnings = (
        readable_secrets(config),
        lobby_certificate_warning(settings),
        ephemeral_public_ports(settings),
        configuration_memory_warning(settings),
        *exposure_warnings(settings),
        *capacity_warnings(settings),
        *edge.warnings,
        *public.warnings,
    )
    return ConfigurationReport(
        edge.problems + public.problems,
        [warning for warning in warnings if warning is not None],
        [*edge.invalid_now, *public.invalid_now],
    )


def certificate_report(settings: Settings) -> ConfigurationReport:
    if settings.tls.cert is None:
        return ConfigurationReport([], [])
    # Its import is slow, and most starts do not need it.
    from pyservice.front import public_certificate

    return public_certificate.certificate_report(settings)


def feed_problems(settings: Settings, wrong: Collection[str] = ()) -> list[str]:
    """Returns the problems of the feed file. Ignores limits of `wrong` settings."""
    path = settings.feed_file
    if path is None:
        return []
    # Their imports are slow, and most starts do not need them.
    from pyservice.dataplane import static_feed
    from pyservice.dataplane.feed_validation import OperatorLimits, configuration_problems
    from pyservice.dataplane.namespace_index import NamespaceIndex

    try:
        content = static_feed.read_feed_file(path)
    except static_feed.FeedDocumentError as error:
        return [f"{path}: {problem}" for problem in error.problems]
    limits = OperatorLimits(
        _UNLIMITED if "player_limit_max" in wrong else settings.player_limit_max,
        None if "regions" in wrong else {region.name_id for region in settings.regions},
        settings.verification_allowed_networks,
        settings.captcha.endpoints,
        _ALL_PORTS if "runtime" in wrong else settings.runtime.host_ports.numbers,
    )
    lines = []
    namespaces = NamespaceIndex()
    for configuration in content.configurations:
        problems = configuration_problems(configuration, limits, namespaces)
        name = f"{configuration.game.name_id}/{configuration.name_id}"
        lines += [
            f"{path}: {name}: {'.'.join(problem.path)}: {problem.reason}" for problem in problems
        ]
        if not problems:
            namespaces.put(configuration)
    return lines
