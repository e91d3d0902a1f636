"""OpenAPI security schemes of the credentials that operations accept."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from google.protobuf.descriptor_pool import Default

from pyservice.pb.hosting.v1 import options_pb2
from pyservice.schema.methods import Method, option


class CredentialKind(Enum):
    """Kinds of credentials. The value is a token prefix or a name."""

    NONE = "none"
    ORIGIN = "origin"
    PUBLIC = "pub"
    ENVIRONMENT = "env"
    DEVELOPMENT = "dev"
    LOBBY = "lobby"
    CLOUD = "cloud"
    CHANNEL = "channel"


_OF_PROTO: Final = {
    number: CredentialKind[name.removeprefix("CREDENTIAL_")]
    for name, number in options_pb2.Credential.items()
    if number != options_pb2.CREDENTIAL_UNSPECIFIED
}


def credential_kinds(method: Method) -> frozenset[CredentialKind]:
    descriptor = Default().FindMethodByName(method.name)
    said = option(descriptor, options_pb2.operation).credentials
    return frozenset(_OF_PROTO[number] for number in said if number in _OF_PROTO)


_TOKENS: Final = {
    CredentialKind.PUBLIC: "A token of the game clients of one namespace.",
    CredentialKind.ENVIRONMENT: "A token of a back end of one namespace.",
    CredentialKind.DEVELOPMENT: "A token of a developer's machine: answers are mock answers.",
    CredentialKind.LOBBY: "The token of one lobby server.",
    CredentialKind.CLOUD: "A token of a developer or of CI, whose scope covers what the path names.",
}


def security_schemes() -> dict[str, Any]:
    found: dict[str, Any] = {
        kind.value: {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": f"{kind.value}_…",
            "description": text,
        }
        for kind, text in _TOKENS.items()
    }
    found[CredentialKind.CHANNEL.value] = {
        "type": "http",
        "scheme": "bearer",
        "description": "The secret of an event channel, 22 to 64 characters that its holder chose.",
    }
    found[CredentialKind.ORIGIN.value] = {
        "type": "apiKey",
        "in": "header",
        "name": "Origin",
        "description": "A page of a domain of the namespace needs no token; its browser sends this.",
    }
    return found


def security_requirements(method: Method) -> list[dict[str, list[str]]]:
    """Returns alternative credentials. An empty list means that no credential is needed."""
    kinds = credential_kinds(method)
    if CredentialKind.NONE in kinds:
        return []
    return [{kind.value: []} for kind in CredentialKind if kind in kinds]
