"""Access to a namespace without tokens: allowed domains, and site users with hashed passwords."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, TypeVar

import bcrypt

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.fair_thread_pool import FairThreadPool
from pyservice.control.name_rules import require_valid
from pyservice.control.namespaces import NamespaceChange
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.network.hosts import is_host_name
from pyservice.pb.hosting.v1 import namespaces_pb2 as pb
from pyservice.schema.configuration_size import domain_bytes
from pyservice.storage import namespaces
from pyservice.storage.database import Database, Record, Transaction
from pyservice.timestamps import now_ms

_DOMAINS_MAX: Final = 1_024
_USERS_MAX: Final = 1_024
_USER_MAX: Final = 128
_USER = re.compile(r"[!-9;-~]+")


class NamespaceAccessOperations:
    def __init__(
        self,
        database: Database,
        namespace_change: NamespaceChange,
        service_domains: Collection[str] = (),
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._service_domains = [domain.lower() for domain in service_domains]
        self._database = database
        self._namespace_change = namespace_change
        self._passwords = PasswordHasher()
        self._now_ms = clock_ms

    async def set_domain_public_auth(
        self, request: pb.SetDomainPublicAuthRequest, caller: Caller
    ) -> pb.SetDomainPublicAuthResponse:
        async def change(tx: Transaction, row: Record) -> None:
            values = {"enable_domain_public_auth": request.enabled}
            await namespaces.change(tx, row.namespace_id, values)

        return await self._namespace_change.apply_and_confirm(
            caller,
            request,
            pb.SetDomainPublicAuthResponse,
            change,
            is_revocation=not request.enabled,
        )

    async def add_domain(
        self, request: pb.AddDomainRequest, caller: Caller
    ) -> pb.AddDomainResponse:
        async def change(tx: Transaction, row: Record) -> None:
            domain = _host(request.domain)
            if domain is None:
                sentence = "must be a host name or an IP address, without scheme and port"
                raise _refused_domain("invalid", sentence)
            if any(
                f".{domain}".endswith(f".{service_domain}")
                for service_domain in self._service_domains
            ):
                sentence = "belongs to this service; a namespace has its own host there already"
                raise _refused_domain("not-allowed", sentence)
            owner = await namespaces.owner_of_domain(tx, domain)
            if owner not in (None, row.namespace_id):
                raise _refused_domain("not-unique", "belongs to another namespace")
            if owner is None:
                await self._namespace_change.records.quotas.require(
                    tx, row.group_id, {"domains": 1}, namespace_id=row.namespace_id
                )
                await self._namespace_change.records.quotas.require_memory(
                    tx, row.group_id, row.namespace_id, domain_bytes(domain)
                )
                # The change locks the namespace, which keeps the count exact.
                await namespaces.change(tx, row.namespace_id, {})
                if await namespaces.count_domains(tx, row.namespace_id) >= _DOMAINS_MAX:
                    sentence = f"the namespace has {_DOMAINS_MAX:,} domains; remove one first"
                    raise _refused_domain("too-many", sentence)
                await namespaces.add_domain(tx, row.namespace_id, domain, self._now_ms())

        return await self._namespace_change.apply_and_confirm(
            caller, request, pb.AddDomainResponse, change
        )

    async def remove_domain(
        self, request: pb.RemoveDomainRequest, caller: Caller
    ) -> pb.RemoveDomainResponse:
        async def change(tx: Transaction, row: Record) -> None:
            domain = _host(request.domain)
            if domain and await namespaces.remove_domain(tx, row.namespace_id, domain):
                await namespaces.change(tx, row.namespace_id, {})

        return await self._namespace_change.apply_and_confirm(
            caller, request, pb.RemoveDomainResponse, change, is_revocation=True
        )

    async def set_cdn_auth(
        self, request: pb.SetCdnAuthRequest, caller: Caller
    ) -> pb.SetCdnAuthResponse:
        async def change(tx: Transaction, row: Record) -> None:
            values = {"cdn_auth_type": request.auth_type}
            await namespaces.change(tx, row.namespace_id, values, is_fed=False)

        return await self._namespace_change.apply(caller, request, pb.SetCdnAuthResponse, change)

    async def set_user(
        self, request: pb.SetAuthUserRequest, caller: Caller
    ) -> pb.SetAuthUserResponse:
        async with self._database.read() as tx:
            namespace = await authorization.find_namespace(tx, caller, request)
        require_valid(_user_problems(request))
        password_hash = await self._passwords.hash(request.password, namespace.group_id)

        async def change(tx: Transaction, row: Record) -> None:
            entry = (row.namespace_id, request.user, password_hash)
            await namespaces.lock(tx, row.namespace_id)
            if not await namespaces.change_password(tx, *entry):
                if await namespaces.count_users(tx, row.namespace_id) >= _USERS_MAX:
                    sentence = f"the namespace has {_USERS_MAX:,} users; remove one first"
                    require_valid([field_problem(["user"], "too-many", sentence)])
                await namespaces.add_user(tx, *entry)

        return await self._namespace_change.apply(caller, request, pb.SetAuthUserResponse, change)

    async def remove_user(
        self, request: pb.RemoveAuthUserRequest, caller: Caller
    ) -> pb.RemoveAuthUserResponse:
        async def change(tx: Transaction, row: Record) -> None:
            if _USER.fullmatch(request.user):
                await namespaces.remove_user(tx, row.namespace_id, request.user)

        return await self._namespace_change.apply(
            caller, request, pb.RemoveAuthUserResponse, change
        )


def _user_problems(request: pb.SetAuthUserRequest) -> list[FieldProblem]:
    problems = []
    sentence = f"must be 1 to {_USER_MAX} visible ASCII characters without a colon"
    if not request.user:
        problems.append(field_problem(["user"], "too-short", sentence))
    elif len(request.user) > _USER_MAX:
        problems.append(field_problem(["user"], "too-long", sentence))
    elif _USER.fullmatch(request.user) is None:
        problems.append(field_problem(["user"], "invalid", sentence))
    length = len(request.password.encode())
    sentence = f"must have 1 to {PASSWORD_MAX_BYTES} bytes"
    if not length:
        problems.append(field_problem(["password"], "too-short", sentence))
    elif length > PASSWORD_MAX_BYTES or "\0" in request.password:
        word = "too-long" if length > PASSWORD_MAX_BYTES else "invalid"
        problems.append(field_problem(["password"], word, sentence))
    return problems


def _refused_domain(word: str, sentence: str) -> ServiceError:
    return ServiceError("VALIDATION_FAILED", errors=[field_problem(["domain"], word, sentence)])


def _host(text: str) -> str | None:
    host = text.lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host if is_host_name(host) else None
    return None if "%" in host else str(address)


PASSWORD_MAX_BYTES: Final = 72
"""Longest password in bytes. bcrypt ignores further bytes."""
BCRYPT_ROUNDS: Final = 10
"""Rounds of a hash. The dummy hash of an unknown user has as many, so that timing reveals nothing."""
WAITING_PER_GROUP_MAX: Final = 64
WAITING_PER_ADDRESS_MAX: Final = 64
WAITING_PER_ADDRESS_AND_GROUP_MAX: Final = 32

_Result = TypeVar("_Result")


class TooManyWaiting(Exception):
    pass


class PasswordThreadPool:
    """Thread pool for password hashing. Limits the unfinished work of each group and client
    address.
    """

    def __init__(self, threads: int) -> None:
        self._threads = FairThreadPool(threads, "passwords")
        self._present: Counter[object] = Counter()

    def __len__(self) -> int:
        return len(self._present)

    async def run(self, group: str, address: bytes | None, work: Callable[[], _Result]) -> _Result:
        """Runs `work` in a thread. Groups take turns. Raises TooManyWaiting if a limit is reached.

        The limits count the unfinished work of the group and of the client address. `address` is
        None if many clients share it.
        """
        most: dict[object, int] = {group: WAITING_PER_GROUP_MAX}
        if address is not None:
            most |= {
                address: WAITING_PER_ADDRESS_MAX,
                (group, address): WAITING_PER_ADDRESS_AND_GROUP_MAX,
            }
        if any(self._present[key] >= bound for key, bound in most.items()):
            raise TooManyWaiting
        self._present.update(most.keys())
        try:
            return await self._threads.run(group, work)
        finally:
            for key in most:
                self._present[key] -= 1
                if not self._present[key]:
                    del self._present[key]

    def close(self) -> None:
        self._threads.close()


class PasswordHasher:
    def __init__(self) -> None:
        self._threads = PasswordThreadPool(1)

    async def hash(self, password: str, group: str) -> str:

        def work() -> bytes:
            return bcrypt.hashpw(password.encode(), bcrypt.gensalt(BCRYPT_ROUNDS))

        try:
            # The address is not limited: callers have tokens and may share an address.
            return (await self._threads.run(group, None, work)).decode()
        except TooManyWaiting:
            raise ServiceError("OVERLOADED") from None
