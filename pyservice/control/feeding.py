"""What the data plane is told of a namespace: one message, made of its records (design: feed).

Owns the shape. When it is sent, and what becomes of a refusal, is `feeder`'s.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from pyservice.control.configuration import decode, to_feed
from pyservice.control.links import Links
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.storage import namespaces, tokens
from pyservice.storage.database import Record, Transaction

_VERSIONS_KEPT: Final = 1_024
_VERSION_BYTES_MAX: Final = 65_536


class Composer:
    """Makes messages. Versions never change, so what was made of one is kept."""

    def __init__(self, source_epoch: int, links: Links) -> None:
        self.source_epoch = source_epoch
        self._links = links
        self._versions: OrderedDict[str, pb.MatchmakerConfig] = OrderedDict()

    async def compose(
        self, tx: Transaction, namespace_id: str, *, version_id: str | None = None
    ) -> pb.NamespaceConfiguration | None:
        """The namespace as it is in the records, None when it is not. With `version_id`: as if it
        ran that one, one revision later.
        """
        row = await namespaces.with_game(tx, namespace_id)
        if row is None:
            return None
        current = version_id or row.version_id
        message = pb.NamespaceConfiguration(
            namespace_id=namespace_id,
            source_epoch=self.source_epoch,
            revision=row.revision + (version_id is not None),
            game=pb.GameIdentity(
                game_id=row.game_id,
                name_id=row.game_name_id,
                display_name=row.game_display_name,
            ),
            name_id=row.name_id,
            display_name=row.display_name,
            current_version_id=current,
            matchmaker=pb.MatchmakerLimits(
                lobby_count_max=row.lobby_count_max, max_players=row.max_players
            ),
            access=pb.Access(
                enable_domain_public_auth=row.enable_domain_public_auth,
                domains=[one.domain for one in await namespaces.domains_of(tx, namespace_id)],
                cdn_domains=self._links.cdn_hosts(row.game_name_id, row.name_id),
            ),
        )
        for version in await namespaces.running_versions(tx, namespace_id, current):
            message.versions.append(self._version(version))
        for token in await tokens.of_namespace(tx, namespace_id):
            _add_token(message, token)
        return message

    def _version(self, row: Record) -> pb.Version:
        made = self._versions.get(row.version_id)
        if made is None:
            made = to_feed(decode(row.config))
            if len(row.config) <= _VERSION_BYTES_MAX:
                self._versions[row.version_id] = made
                if len(self._versions) > _VERSIONS_KEPT:
                    self._versions.popitem(last=False)
        return pb.Version(version_id=row.version_id, display_name=row.display_name, matchmaker=made)


def _add_token(message: pb.NamespaceConfiguration, row: Record) -> None:
    """An env_ token is good by being told, the others by not being told as revoked."""
    if row.kind == "env":
        if row.revoke_ms is None:
            message.environment_tokens.add(
                token_id=row.token_id, sha256=row.sha256, expires_ms=row.expires_ms
            )
        return
    if row.revoke_ms is not None:
        message.revoked_token_ids.append(row.token_id)
    elif row.kind == "dev":
        message.development_tokens.append(pb.DevelopmentToken.FromString(row.answers))
