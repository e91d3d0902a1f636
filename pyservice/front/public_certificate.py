"""Certificate of the public listeners, from the settings of TLS."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from pyservice.observability.logging import get_logger
from pyservice.settings import ConfigurationReport, Settings
from pyservice.transport.native import PublicCertificate

_log = get_logger("service")


class CertificateUnusable(Exception):
    """The certificate or its key cannot be used."""


def open_certificate(settings: Settings) -> PublicCertificate | None:
    """Returns None without TLS. Raises CertificateUnusable.

    With ACME, the certificate is ordered in the background. Handshakes fail until there is one.
    """
    acme = settings.tls.acme
    if acme.domains and acme.contact is not None:
        return PublicCertificate.order(
            acme.domains, acme.contact, acme.directory, acme.root, settings.acme_folder
        )
    return _read_certificate(settings)


def certificate_report(settings: Settings) -> ConfigurationReport:
    """Judges the files `tls.cert` and `tls.key` as clients do now: validity, names and chain."""
    tls = settings.tls
    if tls.cert is None or tls.key is None:
        return ConfigurationReport([], [])
    hosts = sorted(set(_served_hosts(settings)))
    problems, invalid_now, warnings = (
        [f"tls: {text}" for text in texts]
        for texts in PublicCertificate.judge(tls.cert, tls.key, hosts)
    )
    return ConfigurationReport(problems, warnings, invalid_now)


def _served_hosts(settings: Settings) -> Iterator[str]:
    """Yields the hosts of URLs that lead clients to this certificate."""
    if settings.trusted_proxies and not settings.proxy_protocol:
        # The proxy has a certificate of its own for the public URL.
        return
    edge = settings.edge
    of_edge_guard = None if edge.http is edge.https is None else settings.domains.main
    for url in (settings.public_base, settings.lobby_api_url):
        parts = urlsplit(url or "")
        if parts.scheme == "https" and parts.hostname and parts.hostname != of_edge_guard:
            yield parts.hostname


def _read_certificate(settings: Settings) -> PublicCertificate | None:
    tls = settings.tls
    if tls.cert is None or tls.key is None:
        return None
    try:
        return PublicCertificate.read(tls.cert, tls.key)
    except ValueError as error:
        raise CertificateUnusable(f"tls: {error}") from None


def reload_certificate(certificate: PublicCertificate | None, settings: Settings) -> bool:
    """Reads the files again after SIGHUP. Otherwise the old certificate stays, and the result is False.

    `certificate_report` has judged the files before, so only a change since then is a problem.
    """
    tls = settings.tls
    if certificate is None or tls.cert is None or tls.key is None:
        return True
    try:
        certificate.reload(tls.cert, tls.key)
    except ValueError as error:
        _log.error("settings not reloaded", problem=f"tls: {error}")
        return False
    return True


def log_notices(certificate: PublicCertificate) -> None:
    """Logs the orders of the certificate since the last call."""
    for is_problem, text in certificate.take_notices():
        if is_problem:
            _log.error("certificate not ordered", problem=text)
        else:
            _log.info("certificate ordered", names=text)
