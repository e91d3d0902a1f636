"""Admission of players by captcha and verification, before find, create and join reserve slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from typing import Any

from pyservice.calls import Caller, TokenKind
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.dataplane.admission_checks import (
    CaptchaCheck,
    PlayerAction,
    VerificationCheck,
    VerificationRequest,
)
from pyservice.dataplane.engine import Engine, Placed
from pyservice.dataplane.matchmaker_checks import (
    CreateCriteria,
    CreateTarget,
    FindCandidates,
    FindCriteria,
    check_create,
    check_find,
)
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.region_catalog import RegionCatalog
from pyservice.dataplane.resolved_namespace import (
    AdmissionRules,
    CaptchaRule,
    ResolvedNamespace,
    VerificationRule,
    raw_id,
)
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.transport import client_address

PlacementRequest = pb.FindLobbyRequest | pb.JoinLobbyRequest | pb.CreateLobbyRequest


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    namespace: ResolvedNamespace
    candidates: FindCandidates | None = None
    target: CreateTarget | None = None


class Admission:
    def __init__(
        self,
        engine: Engine,
        namespaces: NamespaceIndex,
        regions: RegionCatalog,
        captcha: CaptchaCheck,
        verification: VerificationCheck,
    ) -> None:
        self._engine = engine
        self._namespaces = namespaces
        self._regions = regions
        self._captcha = captcha
        self._verification = verification
        self._flights: SingleFlight[bytes, AdmissionResult] = SingleFlight()

    async def find(
        self,
        request: pb.FindLobbyRequest,
        caller: Caller,
        criteria: FindCriteria,
        idempotency: bytes | None,
    ) -> tuple[ResolvedNamespace, FindCandidates]:
        """Checks captcha and verification of a find. Returns the namespace with the admitted modes
        and regions.

        Raises CAPTCHA_REQUIRED, CAPTCHA_FAILED, MATCHMAKER_VERIFICATION_UNAVAILABLE, and errors of
        `matchmaker_checks`. Raises MATCHMAKER_VERIFICATION_FAILED if verification admits no mode.
        """

        async def admit() -> AdmissionResult:
            attempt = self._attempt("find", request, caller)
            attempt.details = replace(
                attempt.details, tags=dict(request.tags), max_players=criteria.max_players
            )
            while True:
                namespace = self._namespaces.resolved(caller.namespace_id)
                candidates = check_find(namespace, self._regions, criteria)
                if namespace.admission_rules is not None:
                    modes = await attempt.find(namespace.admission_rules, candidates.modes)
                    candidates = FindCandidates(modes, candidates.regions)
                if self._namespaces.resolved(caller.namespace_id) is namespace:
                    return AdmissionResult(namespace, candidates)

        entered = await self._run_shared(idempotency, caller, admit)
        if entered.candidates is None:
            raise RuntimeError("an admitted find has no game modes")
        return entered.namespace, entered.candidates

    async def create(
        self,
        request: pb.CreateLobbyRequest,
        caller: Caller,
        criteria: CreateCriteria,
        idempotency: bytes | None,
    ) -> tuple[ResolvedNamespace, CreateTarget]:

        async def admit() -> AdmissionResult:
            attempt = self._attempt("create", request, caller)
            attempt.details = replace(
                attempt.details,
                tags=dict(request.tags),
                max_players=criteria.max_players,
                config=request.lobby_config if request.HasField("lobby_config") else None,
            )
            while True:
                namespace = self._namespaces.resolved(caller.namespace_id)
                candidates = check_create(namespace, self._regions, criteria)
                if namespace.admission_rules is not None:
                    rules, mode = namespace.admission_rules, candidates.mode.name
                    await attempt.join(rules.captcha, rules.create.get(mode), mode)
                if self._namespaces.resolved(caller.namespace_id) is namespace:
                    return AdmissionResult(namespace, target=candidates)

        entered = await self._run_shared(idempotency, caller, admit)
        if entered.target is None:
            raise RuntimeError("an admitted create has no target")
        return entered.namespace, entered.target

    async def join(
        self, request: pb.JoinLobbyRequest, caller: Caller, idempotency: bytes | None
    ) -> tuple[Placed | None, ResolvedNamespace]:
        """Checks captcha and verification of a join by the rules of the lobby's version.

        Returns the namespace, and the stored result if the request is a repetition, else None. A
        repetition is not checked. A join that would fail, for example because the lobby is full,
        raises that error before the checks.
        """
        lobby_id = raw_id(request.lobby_id)
        replayed = await self._replayed_join(request, caller, lobby_id, idempotency)
        if replayed is not None:
            return replayed, self._namespaces.resolved(caller.namespace_id)

        async def admit() -> AdmissionResult:
            attempt = self._attempt("join", request, caller)
            while True:
                namespace = self._namespaces.resolved(caller.namespace_id)
                lobby = self._engine.lobby(lobby_id)
                if lobby is not None and namespace.admission_rules is not None:
                    attempt.details = replace(
                        attempt.details,
                        lobby=lobby,
                        state=await self._engine.state([caller.namespace_id], lobby_id, None),
                    )
                    join_rules = namespace.admission_rules.join(lobby.version, lobby.mode)
                    await attempt.join(join_rules.captcha, join_rules.verification, lobby.mode)
                if self._namespaces.resolved(caller.namespace_id) is namespace:
                    return AdmissionResult(namespace)

        return None, (await self._run_shared(idempotency, caller, admit)).namespace

    async def _replayed_join(
        self,
        request: pb.JoinLobbyRequest,
        caller: Caller,
        lobby_id: bytes,
        idempotency: bytes | None,
    ) -> Placed | None:
        """Returns the result of a repeated join, or None for a new join that is possible. Otherwise
        raises ServiceError.

        The engine gets a limit of 0 players for the address, and checks it last. A new join
        therefore passes all other checks, fails at this limit and reserves no slot.
        """
        try:
            return await self._engine.join(
                caller.namespace_id,
                lobby_id,
                party_size=request.party_size or 1,
                rejoin_token=request.rejoin_token if request.HasField("rejoin_token") else None,
                source=1,
                source_limit=0,
                idempotency=idempotency,
                deadline=caller.call.deadline,
            )
        except ServiceError as error:
            if error.code != "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE":
                raise
            return None

    async def _run_shared(
        self,
        key: bytes | None,
        caller: Caller,
        work: Callable[[], Coroutine[Any, Any, AdmissionResult]],
    ) -> AdmissionResult:
        try:
            async with asyncio.timeout_at(caller.call.deadline):
                return await (work() if key is None else self._flights.run(key, work))
        except TimeoutError:
            raise ServiceError("DEADLINE_EXCEEDED") from None

    def _attempt(
        self, kind: PlayerAction, request: PlacementRequest, caller: Caller
    ) -> _AdmissionAttempt:
        address = _address(request, caller)
        details = VerificationRequest(
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
        return _AdmissionAttempt(
            self._captcha,
            self._verification,
            details,
            None if address is None else client_address.packed_client(address),
            request.captcha if request.HasField("captcha") else None,
        )


class _AdmissionAttempt:
    """Captcha and verification checks of one request.

    If the configuration changes during the request, the results of earlier checks are kept, because
    a captcha response is valid only once.
    """

    def __init__(
        self,
        captcha: CaptchaCheck,
        verification: VerificationCheck,
        details: VerificationRequest,
        address: bytes | None,
        captcha_response: pb.Captcha | None,
    ) -> None:
        self.details = details
        self._captcha = captcha
        self._verification = verification
        self._address = address
        self._captcha_response = captcha_response
        self._passed_captchas: set[CaptchaRule] = set()
        self._verdicts: dict[tuple[str, VerificationRule], bool] = {}

    async def find(self, rules: AdmissionRules, modes: Sequence[str]) -> list[str]:
        await self._require_human(rules.captcha)
        mode_rules = {mode: rules.find[mode] for mode in modes if mode in rules.find}
        await self._verify_modes(mode_rules)
        passed_modes = [
            mode
            for mode in modes
            if mode not in mode_rules or self._verdicts[mode, mode_rules[mode]]
        ]
        if not passed_modes:
            raise ServiceError("MATCHMAKER_VERIFICATION_FAILED")
        return passed_modes

    async def join(
        self, captcha: CaptchaRule | None, verification: VerificationRule | None, mode: str
    ) -> None:
        await self._require_human(captcha)
        if verification is not None:
            await self._verify_modes({mode: verification})
            if not self._verdicts[mode, verification]:
                raise ServiceError("MATCHMAKER_VERIFICATION_FAILED")

    async def _require_human(self, rule: CaptchaRule | None) -> None:
        # An `env_` caller that sends no player address needs no captcha.
        if rule is None or rule in self._passed_captchas or self._address is None:
            return
        await self._captcha.require_human(
            rule,
            self.details.namespace_id,
            self._address,
            self.details.address or "",
            self._captcha_response,
            self.details.ray_id,
            tenant=self.details.tenant,
        )
        self._passed_captchas.add(rule)

    async def _verify_modes(self, rules: Mapping[str, VerificationRule]) -> None:
        open_rules = [item for item in rules.items() if item not in self._verdicts]
        tasks = [
            asyncio.create_task(self._verification.allows(rule, mode, self.details))
            for mode, rule in open_rules
        ]
        try:
            verdicts = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._verdicts.update(zip(open_rules, verdicts, strict=True))


def _address(request: PlacementRequest, caller: Caller) -> client_address.Address | None:
    if caller.kind is TokenKind.SERVICE:
        return (
            client_address.parse_address(request.client_address) if request.client_address else None
        )
    if caller.call.client is not None:
        return caller.call.client
    address_bytes = caller.call.address
    return (
        ip_address(address_bytes)
        if len(address_bytes) == 4
        else IPv6Address(address_bytes.ljust(16, b"\0"))
    )
