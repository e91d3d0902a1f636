"""Certificate of the public listeners, from the settings of TLS."""

from __future__ import annotations

from pyservice.observability.logging import get_logger
from pyservice.settings import Settings
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


def certificate_problems(settings: Settings) -> list[str]:
    """Returns a line for a certificate file or key file that cannot be used."""
    try:
        _read_certificate(settings)
    except CertificateUnusable as error:
        return [str(error)]
    return []


def _read_certificate(settings: Settings) -> PublicCertificate | None:
    tls = settings.tls
    if tls.cert is None or tls.key is None:
        return None
    try:
        return PublicCertificate.read(tls.cert, tls.key)
    except ValueError as error:
        raise CertificateUnusable(f"tls: {error}") from None


def reload_certificate(certificate: PublicCertificate | None, settings: Settings) -> None:
    """Reads the files again after SIGHUP. Logs a problem, and then the old certificate stays."""
    tls = settings.tls
    if certificate is None or tls.cert is None or tls.key is None:
        return
    try:
        certificate.reload(tls.cert, tls.key)
    except ValueError as error:
        _log.error("certificate not reloaded", problem=f"tls: {error}")


def log_notices(certificate: PublicCertificate) -> None:
    """Logs the orders of the certificate since the last call."""
    for is_problem, text in certificate.take_notices():
        if is_problem:
            _log.error("certificate not ordered", problem=text)
        else:
            _log.info("certificate ordered", names=text)
