"""Messages of the configuration feed, and errors for messages that the data plane refuses.

A message contains only the current version of a namespace. The data plane itself retains the
versions of existing lobbies.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from pyservice.control.configuration_encoding import decode, to_feed
from pyservice.control.data_plane_memory import memory_error
from pyservice.control.resource_summaries import PublicUrls
from pyservice.errors import FieldProblem, ServiceError
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.storage import namespaces, quotas, tokens
from pyservice.storage.database import Record, Transaction
from pyservice.timestamps import now_ms

_VERSIONS_MAX: Final = 1_024
_VERSION_BYTES_MAX: Final = 65_536
_VERSIONS_AT_ONCE: Final = 8
_SERVICE_TOKENS_MAX: Final = 2_000
"""Limit of 1,000 valid tokens, and of 1,000 ended tokens that get an exact error."""


class ComposeRequest(NamedTuple):
    """Request for the feed message of a namespace. With `version_id`, the message has that version
    and the next revision instead of the stored ones.
    """

    namespace_id: str
    version_id: str | None = None


class UnstoredNamespace(NamedTuple):
    """Namespace that is checked before it is stored, with the columns of a stored one."""

    namespace_id: str
    name_id: str
    display_name: str
    version_id: str
    game_id: str
    game_name_id: str
    game_display_name: str
    game_group_id: str
    lobby_count_max: int
    max_players: int
    revision: int = 1
    enable_domain_public_auth: bool = True


class FeedComposer:
    def __init__(
        self, source_epoch: int, links: PublicUrls, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self.source_epoch = source_epoch
        self._now_ms = clock_ms
        self._links = links
        self._versions: OrderedDict[str, pb.Version] = OrderedDict()

    async def compose(
        self, tx: Transaction, namespace_id: str, *, version_id: str | None = None
    ) -> pb.NamespaceConfiguration | None:
        return (await self.compose_all(tx, [ComposeRequest(namespace_id, version_id)]))[0]

    async def compose_new(
        self, tx: Transaction, new: UnstoredNamespace
    ) -> pb.NamespaceConfiguration | None:
        """Returns the message of a namespace before it is stored, or None without its version."""
        versions = await self._versions_of(tx, {new.version_id})
        if new.version_id not in versions:
            return None
        limits = await quotas.limits_of_groups(tx, quotas.OF_DATA_PLANE, [new.game_group_id])
        message = self._message(new, ComposeRequest(new.namespace_id), ())
        _set_limits(message, limits.get(new.game_group_id, {}))
        message.versions.append(versions[new.version_id])
        return message

    async def compose_all(
        self, tx: Transaction, requests: Sequence[ComposeRequest]
    ) -> list[pb.NamespaceConfiguration | None]:
        """Returns the message of each request, or None for a namespace without a record."""
        ids = sorted({request.namespace_id for request in requests})
        records = await namespaces.feed_records(tx, ids)
        token_rows = await tokens.tokens_to_feed(tx, ids, self._now_ms(), _SERVICE_TOKENS_MAX)
        of_tokens = _by_namespace(token_rows)
        of_domains = _by_namespace(records.domains)
        rows = {row.namespace_id: row for row in records.namespaces}
        running = {
            request: request.version_id or str(rows[request.namespace_id].version_id)
            for request in requests
            if request.namespace_id in rows
        }
        groups = {row.game_group_id for row in records.namespaces}
        limits = await quotas.limits_of_groups(tx, quotas.OF_DATA_PLANE, groups)
        versions = await self._versions_of(tx, set(running.values()))
        composed: list[pb.NamespaceConfiguration | None] = []
        for request in requests:
            row = rows.get(request.namespace_id)
            if row is None:
                composed.append(None)
                continue
            message = self._message(row, request, of_domains.get(request.namespace_id, ()))
            _set_limits(message, limits.get(row.game_group_id, {}))
            if running[request] in versions:
                message.versions.append(versions[running[request]])
            for token in of_tokens.get(request.namespace_id, ()):
                _add_token(message, token)
            composed.append(message)
        return composed

    def _message(
        self, row: Record | UnstoredNamespace, request: ComposeRequest, domains: Sequence[Record]
    ) -> pb.NamespaceConfiguration:
        return pb.NamespaceConfiguration(
            namespace_id=row.namespace_id,
            source_epoch=self.source_epoch,
            revision=row.revision + (request.version_id is not None),
            game=pb.GameIdentity(
                game_id=row.game_id,
                name_id=row.game_name_id,
                display_name=row.game_display_name,
                developer_group_id=row.game_group_id,
            ),
            name_id=row.name_id,
            display_name=row.display_name,
            current_version_id=request.version_id or row.version_id,
            matchmaker=pb.MatchmakerLimits(
                lobby_count_max=row.lobby_count_max, max_players=row.max_players
            ),
            access=pb.Access(
                enable_domain_public_auth=row.enable_domain_public_auth,
                domains=[row.domain for row in domains],
                cdn_domains=self._links.cdn_hosts(row.game_name_id, row.name_id),
            ),
        )

    async def _versions_of(self, tx: Transaction, ids: set[str]) -> dict[str, pb.Version]:
        versions = {
            version_id: self._versions[version_id]
            for version_id in ids
            if version_id in self._versions
        }
        missing = sorted(ids - versions.keys())
        for first in range(0, len(missing), _VERSIONS_AT_ONCE):
            batch = missing[first : first + _VERSIONS_AT_ONCE]
            for row in await namespaces.versions_by_id(tx, batch):
                if len(row.config) > _VERSION_BYTES_MAX:
                    versions[row.version_id] = await asyncio.to_thread(_version, row)
                    continue
                versions[row.version_id] = self._versions[row.version_id] = _version(row)
                if len(self._versions) > _VERSIONS_MAX:
                    self._versions.popitem(last=False)
        return versions


def _set_limits(message: pb.NamespaceConfiguration, limits: Mapping[str, int]) -> None:
    for name, limit in limits.items():
        setattr(message.matchmaker, f"group_{name}_max", limit)


def _version(row: Record) -> pb.Version:
    return pb.Version(
        version_id=row.version_id,
        display_name=row.display_name,
        matchmaker=to_feed(decode(row.config)),
    )


def _by_namespace(rows: Sequence[Record]) -> dict[str, list[Record]]:
    rows_of: dict[str, list[Record]] = {}
    for row in rows:
        rows_of.setdefault(row.namespace_id, []).append(row)
    return rows_of


def _add_token(message: pb.NamespaceConfiguration, row: Record) -> None:
    if row.kind == "env":
        message.environment_tokens.add(
            token_id=row.token_id, sha256=row.sha256, expires_ms=row.expires_ms
        )
    if row.revoke_ms is not None:
        message.revoked_token_ids.append(row.token_id)
    elif row.kind == "dev":
        message.development_tokens.append(pb.DevelopmentToken.FromString(row.answers))


NOTHING_SWITCHED: Final = (
    "The data plane refuses this version. The current version was not changed."
)
NOTHING_CREATED: Final = "The data plane has no memory for this namespace. It was not created."
SWITCHED_BACK: Final = (
    "The data plane refuses the new version, so the namespace runs its previous version. All other changes are "
    "stored and take effect."
)
STORED: Final = (
    "The change is stored, but the data plane refuses the namespace and runs its previous configuration. The change "
    "takes effect after you fix the listed errors."
)
_ORPHAN_HINT: Final = (
    "; that namespace belongs to another database, and the operator of this service can remove it"
)

_WORD: Final = "not-allowed"
_TAKEN: Final = "not-unique"

Orphans = Mapping[str, feed_pb2.HeldConfiguration]


def refusal_error(
    message: configuration_pb2.NamespaceConfiguration,
    refusal: feed_pb2.Refused,
    detail: str,
    orphans: Orphans,
) -> ServiceError:
    """Returns VALIDATION_FAILED for a message that the data plane refused. Its problems name fields
    of the caller's request, not of `message`.

    Returns QUOTA_EXCEEDED if the group or the service has no memory for a new version or namespace.
    """
    if refusal.HasField("quota"):
        return _quota_error(refusal.quota, detail)
    problems: list[FieldProblem] = []
    for problem in refusal.problems:
        where, subject = _request_path(message, problem.path)
        rest = _ORPHAN_HINT if problem.held_by in orphans else ""
        word = _TAKEN if problem.held_by else _WORD
        problems.append(FieldProblem((*where, word), f"{subject} {problem.reason}{rest}"))
    return ServiceError("VALIDATION_FAILED", detail, errors=problems)


def _quota_error(quota: feed_pb2.QuotaUse, detail: str) -> ServiceError:
    error = memory_error(quota.quota, quota.limit, quota.use)
    return ServiceError(error.code, f"{detail} {error.detail}", metadata=error.metadata)


def _request_path(
    message: configuration_pb2.NamespaceConfiguration, path: Sequence[str]
) -> tuple[list[str], str]:
    names: list[str]
    match list(path):
        case ["versions", _, "matchmaker", *rest]:
            names = ["config", "matchmaker", *rest]
        case ["versions", _, ("display_name" | "version_id") as name]:
            names = [name]
        case ["current_version_id"]:
            names = ["version_id"]
        case ["matchmaker", *rest] if rest:
            names = rest
        case ["access", "enable_domain_public_auth"]:
            names = ["enabled"]
        case ["access", "domains", index]:
            return ["domain"], f"domain {message.access.domains[int(index)]}"
        case ["access", "domains"]:
            names = ["domain"]
        case ["access", "cdn_domains", index]:
            host = message.access.cdn_domains[int(index)]
            return ["name_id"], f"name_id makes the host {host}, which"
        case ["development_tokens", _, ("hostname" | "ports"), *_]:
            names = list(path[2:])
        case [("name_id" | "display_name") as name]:
            names = [name]
        case _:
            return [], f"the namespace's {'.'.join(path)}" if path else "the namespace"
    return names, ".".join(names)


def operator_reason(refusal: feed_pb2.Refused, orphans: Orphans) -> str:
    """Returns why the data plane refused a message, as a text for the operator.

    Prefers a problem that the operator can fix: a value that an orphaned namespace uses. Field
    names are names in the message.
    """
    for problem in refusal.problems:
        orphan = orphans.get(problem.held_by)
        if orphan is not None:
            return (
                f"{_sentence(problem)}: {orphan.name} ({orphan.namespace_id}), which has no record; "
                "see `pyservice namespace orphans`"
            )
    return _sentence(refusal.problems[0]) if refusal.problems else "refused"


def _sentence(problem: feed_pb2.Problem) -> str:
    return f"{'.'.join(problem.path)} {problem.reason}".lstrip()


def namespace_name(message: configuration_pb2.NamespaceConfiguration) -> str:
    return f"{message.game.name_id}/{message.name_id}"


def concerns_version(refusal: feed_pb2.Refused) -> bool:
    return any(
        not problem.path or problem.path[0] in ("versions", "current_version_id")
        for problem in refusal.problems
    )
