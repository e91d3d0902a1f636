"""Bytes that the configuration of a namespace takes in the data plane's memory.

The content of versions is not included: the data plane measures each different version once. The
control plane and the data plane count with these functions. Tests compare the figures with measured
memory.
"""

from __future__ import annotations

from typing import Final

from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb

NAMESPACE_BYTES: Final = 4_096
"""A namespace without tokens and domains, and with short names."""
SERVICE_TOKEN_BYTES: Final = 192
"""A service token, and its id among the revoked ones later."""
REVOKED_ID_BYTES: Final = 16
_DEVELOPMENT_TOKEN_BYTES: Final = 192
"""A development token without its hostname and ports."""
_VERSION_BYTES: Final = 512
"""Id, name and rules of a version, without its content."""
_DOMAIN_BYTES: Final = 320


def domain_bytes(domain: str) -> int:
    # The configuration and the index of hosts each have the name.
    return _DOMAIN_BYTES + 2 * len(domain)


def development_token_bytes(token: pb.DevelopmentToken) -> int:
    return _DEVELOPMENT_TOKEN_BYTES + token.ByteSize()


def configuration_bytes(configuration: pb.NamespaceConfiguration) -> int:
    """Returns the bytes of a configuration without the content of its versions."""
    access = configuration.access
    return (
        NAMESPACE_BYTES
        + 2 * len(configuration.display_name)
        + 2 * len(configuration.game.display_name)
        + sum(
            _VERSION_BYTES + 2 * len(version.display_name)
            for versions in (configuration.versions, configuration.retained_versions)
            for version in versions
        )
        + sum(map(domain_bytes, access.domains))
        + sum(map(domain_bytes, access.cdn_domains))
        + SERVICE_TOKEN_BYTES * len(configuration.environment_tokens)
        + sum(map(development_token_bytes, configuration.development_tokens))
        + REVOKED_ID_BYTES * len(configuration.revoked_token_ids)
    )
