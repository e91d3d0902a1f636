"""Index of all namespaces: by id, name, service token and web origin.

A namespace is replaced as a whole between two iterations of the event loop, so that a call sees a
consistent state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final

from pyservice.dataplane.held_versions import NOTHING, Growth, HeldVersions, Holding
from pyservice.dataplane.resolved_namespace import (
    ResolvedNamespace,
    VersionsById,
    raw_id,
    resolve_namespace,
)
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid, parse_uuid
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.schema.configuration_size import configuration_bytes
from pyservice.schema.message_digest import message_digest
from pyservice.transport.native import Namespace, Namespaces


@dataclass(frozen=True, slots=True)
class PreparedNamespace:
    resolved: ResolvedNamespace
    header: pb.NamespaceConfiguration
    """Configuration without its tokens and the content of its versions."""
    versions: VersionsById
    native: Namespace
    development_tokens: Mapping[bytes, bytes]
    """Encoded development tokens by id."""
    size: int
    own_bytes: int
    """Counted bytes in memory, without the content of versions."""
    content: bytes

    @property
    def holding(self) -> Holding:
        return Holding(frozenset(self.versions.values()), self.own_bytes)


def prepare_namespace(
    configuration: pb.NamespaceConfiguration, held: HeldVersions
) -> PreparedNamespace:
    """Prepares a configuration for the index. Takes time proportional to its size."""
    header = header_of(configuration)
    versions = held.resolve(configuration)
    resolved = resolve_namespace(header, versions)
    return PreparedNamespace(
        resolved,
        header,
        versions,
        _native_namespace(configuration, resolved),
        {
            raw_id(token.token_id): _without_id(token).SerializeToString()
            for token in configuration.development_tokens
        },
        configuration.ByteSize(),
        configuration_bytes(configuration),
        content_digest(configuration),
    )


def _native_namespace(
    configuration: pb.NamespaceConfiguration, resolved: ResolvedNamespace
) -> Namespace:
    return Namespace(
        resolved.namespace_id,
        label=resolved.label,
        version=resolved.version_id,
        group=resolved.tenant,
        source_limit=resolved.source_limit,
        needs_admission=resolved.admission_rules is not None,
        modes=list(resolved.modes.values()),
        hosts=list(public_hosts(configuration)),
        service_tokens=[
            (
                token.sha256,
                raw_id(token.token_id),
                token.expires_ms if token.HasField("expires_ms") else None,
            )
            for token in configuration.environment_tokens
        ],
        revoked=list(map(raw_id, configuration.revoked_token_ids)),
    )


def _without_id(token: pb.DevelopmentToken) -> pb.DevelopmentToken:
    content = pb.DevelopmentToken()
    content.CopyFrom(token)
    content.ClearField("token_id")
    return content


_TOKEN_FIELDS: Final = frozenset({"environment_tokens", "development_tokens", "revoked_token_ids"})


def header_of(configuration: pb.NamespaceConfiguration) -> pb.NamespaceConfiguration:
    """Returns a copy without tokens and without the content of versions.

    The copy is made field by field, because a cleared field of a message keeps its memory.
    """
    header = pb.NamespaceConfiguration()
    for field, value in configuration.ListFields():
        if field.name in _TOKEN_FIELDS:
            continue
        if field.name in ("versions", "retained_versions"):
            for version in value:
                copy = getattr(header, field.name).add(
                    version_id=version.version_id,
                    display_name=version.display_name,
                    retired_ts_ms=version.retired_ts_ms,
                )
                if version.HasField("matchmaker"):
                    copy.matchmaker.SetInParent()
        elif field.is_repeated:
            getattr(header, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(header, field.name).CopyFrom(value)
        else:
            setattr(header, field.name, value)
    return header


def content_digest(configuration: pb.NamespaceConfiguration) -> bytes:
    if configuration.retained_versions:
        fed = pb.NamespaceConfiguration()
        fed.CopyFrom(configuration)
        del fed.retained_versions[:]
        configuration = fed
    return message_digest(configuration)


class NamespaceIndex:
    def __init__(self) -> None:
        self._namespaces: dict[bytes, PreparedNamespace] = {}
        self.held_versions = HeldVersions()
        self._by_name: dict[tuple[str, str], bytes] = {}
        self._by_game: dict[str, dict[bytes, None]] = {}
        self._labels: dict[bytes, str] = {}
        self._removed: set[bytes] = set()
        self.native = Namespaces()
        self.on_version_replaced: Callable[[ResolvedNamespace], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._namespaces)

    def __iter__(self) -> Iterator[pb.NamespaceConfiguration]:
        """Iterates over the configurations, without tokens and the content of versions."""
        return (namespace.header for namespace in self._namespaces.values())

    def put(self, configuration: pb.NamespaceConfiguration) -> None:
        self.put_namespace(prepare_namespace(configuration, self.held_versions))

    def put_namespace(self, namespace: PreparedNamespace) -> None:
        resolved = namespace.resolved
        previous = self._namespaces.get(resolved.namespace_id)
        if previous is not None and previous.resolved.version_id != resolved.version_id:
            self.on_version_replaced(previous.resolved)
        self.held_versions.replace(resolved.group, namespace.holding, NOTHING)
        self._take_out(resolved.namespace_id)
        self._removed.discard(resolved.namespace_id)
        self._namespaces[resolved.namespace_id] = namespace
        self._labels[resolved.namespace_id] = resolved.label
        self._by_name[resolved.game_name, resolved.name] = resolved.namespace_id
        for game in _game_keys(resolved):
            self._by_game.setdefault(game, {})[resolved.namespace_id] = None
        self.native.put(namespace.native)

    def remove(self, namespace_id: bytes) -> None:
        self._take_out(namespace_id)
        self._removed.add(namespace_id)

    def forget_removed(self, namespace_id: bytes) -> None:
        self._removed.discard(namespace_id)

    def is_removed(self, namespace_id: bytes) -> bool:
        """Returns whether the configuration feed removed the namespace. Its lobbies must end."""
        return namespace_id in self._removed

    def removed_ids(self) -> list[bytes]:
        return list(self._removed)

    def _take_out(self, namespace_id: bytes) -> None:
        namespace = self._namespaces.pop(namespace_id, None)
        if namespace is None:
            return
        self.held_versions.replace(namespace.resolved.group, NOTHING, namespace.holding)
        self.native.remove(namespace_id)
        del self._labels[namespace_id]
        self._by_name.pop((namespace.resolved.game_name, namespace.resolved.name), None)
        for game in _game_keys(namespace.resolved):
            of_game = self._by_game[game]
            of_game.pop(namespace_id, None)
            if not of_game:
                del self._by_game[game]

    def header(self, namespace_id: bytes) -> pb.NamespaceConfiguration | None:
        """Returns the configuration without tokens and the content of versions."""
        namespace = self._namespaces.get(namespace_id)
        return namespace.header if namespace else None

    def configuration(self, namespace_id: bytes) -> pb.NamespaceConfiguration | None:
        """Returns the configuration with the content of versions, without tokens. Takes time
        proportional to its size.
        """
        namespace = self._namespaces.get(namespace_id)
        if namespace is None:
            return None
        configuration = pb.NamespaceConfiguration()
        configuration.CopyFrom(namespace.header)
        for version in (*configuration.retained_versions, *configuration.versions):
            content = namespace.versions[version.version_id].content
            if content:
                version.matchmaker.MergeFromString(content)
        return configuration

    def growth(self, namespace: PreparedNamespace) -> Growth:
        """Returns the bytes that the index would hold more with this namespace."""
        stored = self._namespaces.get(namespace.resolved.namespace_id)
        removed = stored.holding if stored else NOTHING
        return self.held_versions.growth(namespace.resolved.group, namespace.holding, removed)

    def service_token_hashes(self, namespace_id: bytes) -> Set[bytes]:
        namespace = self._namespaces.get(namespace_id)
        return frozenset(namespace.native.service_token_hashes() if namespace else ())

    def development_token(self, namespace_id: bytes, token_id: bytes) -> pb.DevelopmentToken:
        """Returns the mock responses of a token, without its id. Returns an empty message for an
        unknown token.
        """
        namespace = self._namespaces.get(namespace_id)
        encoded = namespace.development_tokens.get(token_id, b"") if namespace else b""
        return pb.DevelopmentToken.FromString(encoded)

    def digest(self, namespace_id: bytes) -> bytes:
        namespace = self._namespaces.get(namespace_id)
        return namespace.content if namespace else b""

    def size(self, text: str) -> int:
        """Returns the size of a namespace's stored configuration in bytes, or 0 for an unknown
        namespace.

        `text` is the namespace id. A malformed id counts as unknown.
        """
        namespace = self._namespaces.get(parse_uuid(text) or b"")
        return namespace.size if namespace else 0

    def resolved(self, namespace_id: bytes) -> ResolvedNamespace:
        namespace = self._namespaces.get(namespace_id)
        if namespace is None:
            raise ServiceError("TOKEN_REVOKED", "The namespace of the token was removed.")
        return namespace.resolved

    def labels(self) -> dict[bytes, str]:
        return dict(self._labels)

    def find(self, text: str) -> ResolvedNamespace | None:
        game, separator, name = text.partition("/")
        raw = self._by_name.get((game, name)) if separator else parse_uuid(text)
        namespace = self._namespaces.get(raw) if raw else None
        return namespace.resolved if namespace else None

    def in_game(self, text: str) -> list[ResolvedNamespace]:
        return [
            self._namespaces[namespace_id].resolved for namespace_id in self._by_game.get(text, ())
        ]

    def is_known(self, namespace_id: bytes) -> bool:
        return namespace_id in self._namespaces

    def group_of(self, namespace_id: bytes) -> bytes:
        """Returns the developer group of a known namespace, or its game if no group is known."""
        return self.resolved(namespace_id).tenant


def _game_keys(namespace: ResolvedNamespace) -> tuple[str, str]:
    return format_uuid(namespace.game_id), namespace.game_name


def public_hosts(configuration: pb.NamespaceConfiguration) -> set[str]:
    access = configuration.access
    if access.HasField("enable_domain_public_auth") and not access.enable_domain_public_auth:
        return set()
    return {host.lower().rstrip(".") for host in (*access.domains, *access.cdn_domains)}
