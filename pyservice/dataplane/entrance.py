"""The way of a find or join through captcha and verification, for namespaces that have them.

Owns when who is asked: after what the configuration says, before a place is reserved (decisions
5.13). What is asked is in `captcha` and `verification`, the places are the engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from typing import Any, TypeVar

from pyservice.calls import Caller, TokenKind
from pyservice.dataplane.admission import (
    Admitted,
    AdmittedCreate,
    CreateWish,
    Wish,
    admit_create,
    admit_find,
)
from pyservice.dataplane.captcha import Captcha
from pyservice.dataplane.configuration import ResolvedNamespace, raw_id
from pyservice.dataplane.engine import Engine, Placed
from pyservice.dataplane.gates import CaptchaRule, Gates, VerificationRule
from pyservice.dataplane.namespaces import Namespaces
from pyservice.dataplane.regions import Regions
from pyservice.dataplane.repetitions import Repetitions
from pyservice.dataplane.verification import Kind, Question, Verification
from pyservice.doors import addresses
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

T = TypeVar("T")
Request = pb.FindLobbyRequest | pb.JoinLobbyRequest | pb.CreateLobbyRequest


@dataclass(frozen=True, slots=True)
class Entered:
    """What was let in: the namespace as it is now, and what of a find is left."""

    namespace: ResolvedNamespace
    admitted: Admitted | None = None
    made: AdmittedCreate | None = None


class Entrance:
    """Asks what the namespace of a caller asks. Only for namespaces that have `gates`."""

    def __init__(
        self,
        engine: Engine,
        namespaces: Namespaces,
        regions: Regions,
        captcha: Captcha,
        verification: Verification,
    ) -> None:
        self._engine = engine
        self._namespaces = namespaces
        self._regions = regions
        self._captcha = captcha
        self._verification = verification
        self._repetitions: Repetitions[Entered] = Repetitions()

    async def find(
        self, request: pb.FindLobbyRequest, caller: Caller, wish: Wish, idempotency: bytes | None
    ) -> tuple[ResolvedNamespace, Admitted]:
        """The namespace and what the find may use. Raises CAPTCHA_REQUIRED, CAPTCHA_FAILED,
        MATCHMAKER_VERIFICATION_FAILED (no mode is left), MATCHMAKER_VERIFICATION_UNAVAILABLE, and
        what admission raises when the configuration changed meanwhile.
        """

        async def ask() -> Entered:
            visit = self._visit("find", request, caller)
            visit.question = replace(
                visit.question, tags=dict(request.tags), max_players=wish.max_players
            )
            while True:
                namespace = self._namespaces.resolved(caller.namespace_id)
                admitted = admit_find(namespace, self._regions, wish)
                if namespace.gates is not None:
                    modes = await visit.find(namespace.gates, admitted.modes)
                    admitted = Admitted(modes, admitted.regions)
                # What was asked holds for the configuration that it was asked for.
                if self._namespaces.resolved(caller.namespace_id) is namespace:
                    return Entered(namespace, admitted)

        entered = await self._once(idempotency, caller, ask)
        if entered.admitted is None:
            raise RuntimeError("a find was let in without modes")
        return entered.namespace, entered.admitted

    async def create(
        self,
        request: pb.CreateLobbyRequest,
        caller: Caller,
        wish: CreateWish,
        idempotency: bytes | None,
    ) -> tuple[ResolvedNamespace, AdmittedCreate]:
        """The namespace and what is to be made. Raises as find does."""

        async def ask() -> Entered:
            visit = self._visit("create", request, caller)
            visit.question = replace(
                visit.question,
                tags=dict(request.tags),
                max_players=wish.max_players,
                config=request.lobby_config if request.HasField("lobby_config") else None,
            )
            while True:
                namespace = self._namespaces.resolved(caller.namespace_id)
                admitted = admit_create(namespace, self._regions, wish)
                if namespace.gates is not None:
                    gates, mode = namespace.gates, admitted.mode.name
                    await visit.join(gates.captcha, gates.create.get(mode), mode)
                if self._namespaces.resolved(caller.namespace_id) is namespace:
                    return Entered(namespace, made=admitted)

        entered = await self._once(idempotency, caller, ask)
        if entered.made is None:
            raise RuntimeError("a create was let in without a lobby")
        return entered.namespace, entered.made

    async def join(
        self, request: pb.JoinLobbyRequest, caller: Caller, idempotency: bytes | None
    ) -> tuple[Placed | None, ResolvedNamespace]:
        """The same for a join, by the rules of the lobby's version; and what a join under this key
        got before. Raises what refuses the join before anybody is asked, too.
        """
        lobby_id = raw_id(request.lobby_id)
        before = await self._joined(request, caller, lobby_id, idempotency)
        if before is not None:
            return before, self._namespaces.resolved(caller.namespace_id)

        async def ask() -> Entered:
            visit = self._visit("join", request, caller)
            while True:
                namespace = self._namespaces.resolved(caller.namespace_id)
                lobby = self._engine.lobby(lobby_id)
                if lobby is not None and namespace.gates is not None:
                    visit.question = replace(
                        visit.question,
                        lobby=lobby,
                        state=await self._engine.state([caller.namespace_id], lobby_id, None),
                    )
                    gate = namespace.gates.join(lobby.version, lobby.mode)
                    await visit.join(gate.captcha, gate.verification, lobby.mode)
                # A lobby that has ended meanwhile is the engine's to tell.
                if self._namespaces.resolved(caller.namespace_id) is namespace:
                    return Entered(namespace)

        return None, (await self._once(idempotency, caller, ask)).namespace

    async def _joined(
        self,
        request: pb.JoinLobbyRequest,
        caller: Caller,
        lobby_id: bytes,
        idempotency: bytes | None,
    ) -> Placed | None:
        """What a join under this key got before, or None: it would come as far as the places of
        its source, which are counted after captcha and verification.
        """
        try:
            return await self._engine.join(
                caller.namespace_id,
                lobby_id,
                party_size=request.party_size or 1,
                rejoin_token=request.rejoin_token if request.HasField("rejoin_token") else None,
                # Nobody: one who may have no places.
                source=1,
                source_limit=0,
                idempotency=idempotency,
                deadline=caller.call.deadline,
            )
        except ServiceError as error:
            if error.code != "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE":
                raise
            return None

    async def _once(
        self, key: bytes | None, caller: Caller, work: Callable[[], Coroutine[Any, Any, Entered]]
    ) -> Entered:
        """Within the caller's deadline; who repeats a request in flight shares its outcome."""
        try:
            async with asyncio.timeout_at(caller.call.deadline):
                return await (work() if key is None else self._repetitions.once(key, work))
        except TimeoutError:
            raise ServiceError("DEADLINE_EXCEEDED") from None

    def _visit(self, kind: Kind, request: Request, caller: Caller) -> _Visit:
        address = _address(request, caller)
        question = Question(
            kind=kind,
            tenant=self._namespaces.resolved(caller.namespace_id).tenant,
            namespace_id=caller.namespace_id,
            party_size=request.party_size or 1,
            verification_data=(
                request.verification_data if request.HasField("verification_data") else None
            ),
            address=None if address is None else str(address),
            user_agent=caller.call.user_agent,
            ray_id=caller.call.ray_id,
        )
        return _Visit(
            self._captcha,
            self._verification,
            question,
            None if address is None else addresses.pack(address),
            request.captcha if request.HasField("captcha") else None,
        )


class _Visit:
    """One request before the gates. It is asked once for each thing, also when the configuration
    changes meanwhile: a captcha's response is good once.
    """

    def __init__(
        self,
        captcha: Captcha,
        verification: Verification,
        question: Question,
        address: bytes | None,
        proof: pb.Captcha | None,
    ) -> None:
        self.question = question
        self._captcha = captcha
        self._verification = verification
        self._address = address
        self._proof = proof
        self._passed: set[CaptchaRule] = set()
        self._verdicts: dict[tuple[str, VerificationRule], bool] = {}

    async def find(self, gates: Gates, modes: Sequence[str]) -> list[str]:
        """The modes that are left."""
        await self._require_human(gates.captcha)
        asked = {mode: gates.find[mode] for mode in modes if mode in gates.find}
        await self._ask(asked)
        left = [mode for mode in modes if mode not in asked or self._verdicts[mode, asked[mode]]]
        if not left:
            raise ServiceError("MATCHMAKER_VERIFICATION_FAILED")
        return left

    async def join(
        self, captcha: CaptchaRule | None, verification: VerificationRule | None, mode: str
    ) -> None:
        """Returns when the player may."""
        await self._require_human(captcha)
        if verification is not None:
            await self._ask({mode: verification})
            if not self._verdicts[mode, verification]:
                raise ServiceError("MATCHMAKER_VERIFICATION_FAILED")

    async def _require_human(self, rule: CaptchaRule | None) -> None:
        # A back end that names no player speaks for itself: nobody is there to be human.
        if rule is None or rule in self._passed or self._address is None:
            return
        await self._captcha.require_human(
            rule,
            self.question.namespace_id,
            self._address,
            self.question.address or "",
            self._proof,
            self.question.ray_id,
            tenant=self.question.tenant,
        )
        self._passed.add(rule)

    async def _ask(self, rules: Mapping[str, VerificationRule]) -> None:
        """All at once; the first that gives no answer ends the others."""
        open_rules = [item for item in rules.items() if item not in self._verdicts]
        tasks = [
            asyncio.create_task(self._verification.allows(rule, mode, self.question))
            for mode, rule in open_rules
        ]
        try:
            verdicts = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._verdicts.update(zip(open_rules, verdicts, strict=True))


def _address(request: Request, caller: Caller) -> addresses.Address | None:
    """Of whom is asked: a back end names its player, everybody else is who is connected."""
    if caller.kind is TokenKind.ENVIRONMENT:
        return addresses.parse(request.client_address) if request.client_address else None
    if caller.call.client is not None:
        return caller.call.client
    packed = caller.call.address
    return ip_address(packed) if len(packed) == 4 else IPv6Address(packed.ljust(16, b"\0"))
