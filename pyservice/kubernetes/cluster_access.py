"""Access to the API server of a cluster: its address, certificates and credentials.

They come from the service account of this Pod or from a kubeconfig. Files that are replaced later
are read again, so that rotated tokens and certificates need no restart.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from pyservice.observability.logging import get_logger

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder in which each Pod with a service account finds its credentials."""

_FILE_MAX_BYTES: Final = 1 << 20
_REFUSED: Final[Mapping[str, str]] = {
    "exec": "runs a program for its credentials (exec)",
    "auth-provider": "has an auth-provider",
    "username": "has a user name and password",
    "as": "acts as another user (as)",
}
"""Fields of a user in a kubeconfig that are refused, each with words for the sentence."""
_REMEDY: Final = "use a service account with token, tokenFile, or client-certificate and client-key"

_log = get_logger("kubernetes")

_Source = Path | bytes
_Stamp = tuple[int, int, int]


class NoAccess(Exception):
    """No way to the API server is configured. The message is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Each one is the content itself, or a file that may be replaced."""

    authority: _Source | None = None
    """Certificates of the authorities that are trusted. None: those of the system."""
    certificate: _Source | None = None
    key: _Source | None = None
    token: _Source | None = None

    @property
    def tls_sources(self) -> Sequence[_Source | None]:
        return self.authority, self.certificate, self.key


class ClusterAccess:
    def __init__(
        self, url: str, credentials: Credentials, *, namespace: str = "", server_name: str = ""
    ) -> None:
        """Reads all files. Raises NoAccess.

        `namespace` is the default of the account. `server_name` is the name in the certificate of
        the server, if the name in `url` is another one.
        """
        self.url: Final = url.rstrip("/")
        self.namespace: Final = namespace
        self.server_name: Final = server_name or None
        self._credentials = credentials
        is_tls = urlsplit(url).scheme == "https"
        if not is_tls and (credentials.token is not None or credentials.key is not None):
            raise NoAccess(f"{url} has no TLS, and credentials would be readable: use https")
        self._stamps: dict[Path, _Stamp] = {}
        # Before the files are read, so that a later change is seen.
        self._is_replaced([*credentials.tls_sources, credentials.token])
        self._tls = _tls_context(credentials) if is_tls else None
        self._token = _text(credentials.token)

    def tls(self) -> ssl.SSLContext | None:
        """Returns the TLS context, with the certificates of now. None: the server has no TLS."""
        if self._tls is not None and self._is_replaced(self._credentials.tls_sources):
            try:
                self._tls = _tls_context(self._credentials)
            except NoAccess as error:
                # The files are replaced one after the other. The next change reads them again.
                _log.warning("certificates for the cluster stay the old ones", error=str(error))
        return self._tls

    def headers(self) -> dict[str, str]:
        """Returns the headers that authenticate a request."""
        if self._is_replaced([self._credentials.token]):
            try:
                self._token = _text(self._credentials.token)
            except NoAccess as error:
                _log.warning("token for the cluster stays the old one", error=str(error))
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _is_replaced(self, sources: Sequence[_Source | None]) -> bool:
        """Returns whether one of the files has changed since the last call for it."""
        stamps = {source: _stamp(source) for source in sources if isinstance(source, Path)}
        is_replaced = any(self._stamps.get(path) != stamp for path, stamp in stamps.items())
        self._stamps |= stamps
        return is_replaced


def service_account_access(
    environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT
) -> ClusterAccess:
    """Returns the access of the Pod in which this process runs. Raises NoAccess."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not folder.is_dir():
        raise NoAccess(
            "this process does not run in a Pod with a service account: set kubernetes.kubeconfig"
        )
    namespace = _read(folder / "namespace").decode(errors="replace").strip()
    credentials = Credentials(authority=folder / "ca.crt", token=folder / "token")
    address = f"[{host}]" if ":" in host else host
    return ClusterAccess(f"https://{address}:{port}", credentials, namespace=namespace)


def kubeconfig_access(path: Path) -> ClusterAccess:
    """Returns the access of the current context of a kubeconfig. Raises NoAccess."""
    try:
        config = yaml.safe_load(_read(path))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise NoAccess(f"{path} is not valid YAML: {error}") from None
    if not isinstance(config, dict):
        raise NoAccess(f"{path} is not a kubeconfig: it has no fields")
    name = config.get("current-context")
    if not name:
        raise NoAccess(f"{path} has no current-context: set one with kubectl config use-context")
    context = _entry(path, config, "context", name)
    cluster = _entry(path, config, "cluster", context.get("cluster"))
    user = _entry(path, config, "user", context.get("user"))
    return _of_kubeconfig(path, context, cluster, user)


def _of_kubeconfig(
    path: Path, context: Mapping[str, Any], cluster: Mapping[str, Any], user: Mapping[str, Any]
) -> ClusterAccess:
    name = context["user"]
    for field, words in _REFUSED.items():
        if user.get(field):
            raise NoAccess(f"{path}: user {name} {words}, which the service does not do: {_REMEDY}")
    if cluster.get("insecure-skip-tls-verify"):
        raise NoAccess(
            f"{path}: insecure-skip-tls-verify would send credentials to any server: "
            "set certificate-authority"
        )
    if cluster.get("proxy-url"):
        raise NoAccess(f"{path}: proxy-url is not supported: give a server that is reachable")
    url = cluster.get("server")
    if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https"):
        raise NoAccess(f"{path}: the cluster has no server, such as https://10.0.0.1:6443")
    token = user.get("token")
    credentials = Credentials(
        authority=_source(path, cluster, "certificate-authority"),
        certificate=_source(path, user, "client-certificate"),
        key=_source(path, user, "client-key"),
        # As in kubectl, the file has precedence.
        token=_file(path, user["tokenFile"]) if user.get("tokenFile") else _inline(token),
    )
    if (credentials.certificate is None) != (credentials.key is None):
        raise NoAccess(f"{path}: user {name} needs both client-certificate and client-key")
    return ClusterAccess(
        url,
        credentials,
        namespace=str(context.get("namespace") or ""),
        server_name=str(cluster.get("tls-server-name") or ""),
    )


def _entry(path: Path, config: Mapping[str, Any], kind: str, name: object) -> Mapping[str, Any]:
    """Returns the context, cluster or user with a name. Raises NoAccess."""
    entries = config.get(f"{kind}s")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name and name:
            fields = entry.get(kind)
            return fields if isinstance(fields, dict) else {}
    raise NoAccess(f"{path} has no {kind} {name!r}, which its current context needs")


def _source(path: Path, fields: Mapping[str, Any], name: str) -> _Source | None:
    """Returns the content of `<name>-data`, or else the file of `name`. Raises NoAccess."""
    if data := fields.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except binascii.Error:
            raise NoAccess(f"{path}: {name}-data is not base64") from None
    return _file(path, fields[name]) if fields.get(name) else None


def _file(path: Path, name: object) -> Path:
    """Returns a file that a kubeconfig names, relative to the folder of the kubeconfig."""
    return path.parent / str(name)


def _inline(token: object) -> bytes | None:
    return str(token).encode() if token else None


def _tls_context(credentials: Credentials) -> ssl.SSLContext:
    authority = None if credentials.authority is None else _read(credentials.authority)
    try:
        text = None if authority is None else authority.decode("ascii")
        context = ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise NoAccess(f"{_name(credentials.authority)} is not a certificate: {error}") from None
    if credentials.certificate is not None and credentials.key is not None:
        identity = _read(credentials.certificate) + b"\n" + _read(credentials.key)
        try:
            _load_identity(context, identity)
        except (ssl.SSLError, OSError) as error:
            names = f"{_name(credentials.certificate)} and {_name(credentials.key)}"
            raise NoAccess(f"{names} are not a certificate and its key: {error}") from None
    return context


def _load_identity(context: ssl.SSLContext, identity: bytes) -> None:
    """Loads a certificate and its key, which OpenSSL reads only from a file.

    The file is in memory, so a key in a kubeconfig is never on a disk. Raises OSError.
    """
    with open(os.memfd_create("identity"), "wb", buffering=0) as file:
        file.write(identity)
        # Without a password, OpenSSL would ask for one at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=lambda: "")


def _text(source: _Source | None) -> str:
    content = b"" if source is None else _read(source)
    text = content.decode("ascii", errors="replace").strip()
    if source is not None and (not text or not text.isprintable() or "\ufffd" in text):
        raise NoAccess(f"{_name(source)} is not a token")
    return text


def _read(source: _Source) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        with source.open("rb") as file:
            content = file.read(_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise NoAccess(f"{source} cannot be read: {error.strerror}") from None
    if len(content) > _FILE_MAX_BYTES:
        raise NoAccess(f"{source} is longer than {_FILE_MAX_BYTES} bytes")
    return content


def _name(source: _Source | None) -> str:
    return str(source) if isinstance(source, Path) else "a field of the kubeconfig"


def _stamp(path: Path) -> _Stamp:
    """Returns what changes when a file is replaced. A missing file has a stamp of its own."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size
