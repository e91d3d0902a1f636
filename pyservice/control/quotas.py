"""Checks of quotas, and the operation that returns a group's limits and use.

A check runs in the transaction that creates the record, and locks the group. So concurrent
requests, also of several services on one database, never exceed a limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.audit_log import AuditLog
from pyservice.control.data_plane_memory import DataPlaneMemory
from pyservice.control.feeder import Feeder
from pyservice.errors import ServiceError, field_problem
from pyservice.pb.hosting.internal.v1 import control_admin_pb2
from pyservice.pb.hosting.v1 import groups_pb2 as pb
from pyservice.settings.quotas import QUOTAS, QuotaSettings
from pyservice.storage import groups, namespaces, quotas
from pyservice.storage.database import Database, Transaction
from pyservice.storage.database_errors import retry_on_conflict
from pyservice.timestamps import now_ms


class Room(NamedTuple):
    """Limit and use of a quota at one time, for an amount that is not known before."""

    quota: str
    limit: int
    use: int

    def require(self, added: int) -> None:
        """Raises QUOTA_EXCEEDED if the added amount exceeds the limit."""
        if self.use + added > self.limit:
            raise QUOTAS[self.quota].exceeded(self.limit, self.use)


@dataclass(slots=True)
class QuotaChecks:
    defaults: QuotaSettings = field(default_factory=QuotaSettings)
    """Limits of groups without limits of their own. A reload of the settings replaces them."""
    now_ms: Callable[[], int] = now_ms
    memory: DataPlaneMemory = field(default_factory=DataPlaneMemory)

    async def require(
        self,
        tx: Transaction,
        group_id: str,
        added: Mapping[str, int],
        *,
        game_id: str = "",
        namespace_id: str = "",
        is_exact: bool = True,
    ) -> None:
        """Raises QUOTA_EXCEEDED if a quota has no room. `added` maps quotas to the added amounts.

        An exact check adds the amounts to stored uses, and locks the group until the transaction
        ends. A transaction locks the group before a game or namespace, so that two transactions
        never wait for each other. Without an id of its game or namespace, a record is in a new one.
        """
        keys = {"group": group_id, "game": game_id, "namespace": namespace_id}
        limits = await self.limits(tx, group_id)
        uses: dict[str, int] = {}
        if is_exact and quotas.STORED.keys() & added.keys():
            uses = await quotas.add_use(tx, group_id, added)
        elif is_exact:
            await quotas.lock_group(tx, group_id)
        for name, amount in added.items():
            key = keys[QUOTAS[name].scope]
            if not key:
                use = 0
            elif name in uses:
                use = uses[name]
            else:
                use = await quotas.use(tx, name, key, self.now_ms())
            if use + amount > limits[name]:
                raise QUOTAS[name].exceeded(limits[name], use)

    async def room(self, tx: Transaction, group_id: str, name: str) -> Room:
        """Returns the room of a group's quota. Raises QUOTA_EXCEEDED if there is none."""
        limits = await self.limits(tx, group_id)
        room = Room(name, limits[name], await quotas.use(tx, name, group_id, self.now_ms()))
        room.require(1)
        return room

    async def require_memory(
        self, tx: Transaction, group_id: str, namespace_id: str, added: int
    ) -> None:
        """Raises QUOTA_EXCEEDED if the data plane has no memory for an addition to a namespace.

        The addition counts from the commit on, so concurrent transactions can together exceed the
        limit. Send the namespace to the data plane after the commit.
        """
        limits = await self.limits(tx, group_id)
        self.memory.require(group_id, added, limits[quotas.CONFIGURATION_BYTES])
        tx.after_commit(partial(self.memory.add, group_id, namespace_id, added))

    async def require_group(self, tx: Transaction, identity_id: str) -> None:
        """Raises QUOTA_EXCEEDED if the identity owns as many groups as its quota allows."""
        await groups.lock_identity(tx, identity_id)
        use = await quotas.use(tx, "groups", identity_id, self.now_ms())
        if use >= self.defaults.groups:
            raise QUOTAS["groups"].exceeded(self.defaults.groups, use)

    async def limits(self, tx: Transaction, group_id: str) -> dict[str, int]:
        """Returns every limit of the group: its own, or the default."""
        return {**self.defaults.model_dump(), **await quotas.limits_of_group(tx, group_id)}


@dataclass(frozen=True, slots=True)
class QuotaOperations:
    database: Database
    checks: QuotaChecks
    unrecorded: Mapping[str, Callable[[str], int]]
    """Functions that return a group's use of the quotas without records, by quota."""

    async def get(
        self, request: pb.GetGroupQuotasRequest, caller: Caller
    ) -> pb.GetGroupQuotasResponse:
        async with self.database.read() as tx:
            await authorization.find_group(tx, caller, request.group_id)
            return pb.GetGroupQuotasResponse(quotas=await self.of_group(tx, request.group_id))

    async def of_group(self, tx: Transaction, group_id: str) -> list[pb.GroupQuota]:
        own = await quotas.limits_of_group(tx, group_id)
        defaults = self.checks.defaults.model_dump()
        rows = []
        for quota in QUOTAS.values():
            if quota.scope == "identity":
                continue
            if quota.name in self.unrecorded:
                use = quotas.Use(self.unrecorded[quota.name](group_id), None)
            else:
                use = await quotas.largest_use(tx, quota.name, group_id, self.checks.now_ms())
            rows.append(
                pb.GroupQuota(
                    quota=quota.name,
                    scope=quota.scope,
                    unit=quota.unit,
                    limit=own.get(quota.name, defaults[quota.name]),
                    is_default=quota.name not in own,
                    use=use.amount,
                    object_id=use.object_id,
                )
            )
        return rows


@dataclass(frozen=True, slots=True)
class QuotaAdministration:
    """Handlers of the command `pyservice quota`."""

    database: Database
    operations: QuotaOperations
    feeder: Feeder
    audit: AuditLog

    async def list_(
        self, request: control_admin_pb2.ListQuotasRequest
    ) -> control_admin_pb2.ListQuotasResponse:
        async with self.database.read() as tx:
            await _require_known_group(tx, request.group_id)
            rows = await self.operations.of_group(tx, request.group_id)
        return control_admin_pb2.ListQuotasResponse(quotas=rows)

    async def set_(
        self, request: control_admin_pb2.SetQuotasRequest
    ) -> control_admin_pb2.SetQuotasResponse:
        _require_group_quotas(request.limits, "limits")

        async def change(tx: Transaction) -> set[str]:
            limits = sorted(request.limits.items())
            return {
                name
                for name, limit in limits
                if await quotas.set_limit(tx, request.group_id, name, limit)
            }

        await self._change(request, change)
        return control_admin_pb2.SetQuotasResponse()

    async def reset(
        self, request: control_admin_pb2.ResetQuotasRequest
    ) -> control_admin_pb2.ResetQuotasResponse:
        _require_group_quotas(request.quotas, "quotas")

        async def change(tx: Transaction) -> set[str]:
            names = request.quotas or QUOTAS
            return {name for name in names if await quotas.reset_limit(tx, request.group_id, name)}

        await self._change(request, change)
        return control_admin_pb2.ResetQuotasResponse()

    async def _change(
        self,
        request: control_admin_pb2.SetQuotasRequest | control_admin_pb2.ResetQuotasRequest,
        change: Callable[[Transaction], Awaitable[Set[str]]],
    ) -> None:
        """Runs `change`, which returns the names of the quotas with another limit than before."""
        group_id = request.group_id

        async def attempt() -> None:
            async with self.database.write() as tx:
                await _require_known_group(tx, group_id)
                await quotas.lock_group(tx, group_id)
                changed = await change(tx)
                await self.audit.add_of_operator(tx, request)
                if not changed.isdisjoint(quotas.OF_DATA_PLANE):
                    await self._feed_namespaces(tx, group_id)

        await retry_on_conflict(attempt)

    async def _feed_namespaces(self, tx: Transaction, group_id: str) -> None:
        """Sends the group's namespaces to the data plane, which checks some quotas."""
        for row in await namespaces.ids_of_group(tx, group_id):
            await namespaces.change(tx, row.namespace_id, {})
            tx.after_commit(partial(self.feeder.enqueue, row.namespace_id, group_id))


async def _require_known_group(tx: Transaction, group_id: str) -> None:
    if await groups.find(tx, group_id) is None:
        raise ServiceError("GROUP_NOT_FOUND")


def _require_group_quotas(names: Iterable[str], field_name: str) -> None:
    of_group = [quota.name for quota in QUOTAS.values() if quota.scope != "identity"]
    unknown = sorted(name for name in names if name not in of_group)
    if unknown:
        raise ServiceError(
            "VALIDATION_FAILED",
            f"A group has the quotas {', '.join(of_group)}.",
            errors=[field_problem([field_name, name], "not-found") for name in unknown],
        )
