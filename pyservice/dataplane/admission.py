"""Admission of players by captcha and verification, before find, create and join reserve slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyservice.calls import Call, Caller, EncodedRequest, TokenKind
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.dataplane.admission_checks import (
    CaptchaCheck,
    PlayerAction,
    VerificationCheck,
    VerificationRequest,
)
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_templates import CreateTarget
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import NativeMatchmaker, PlacementRequest
from pyservice.dataplane.resolved_namespace import (
    AdmissionRules,
    CaptchaRule,
    VerificationRule,
    raw_id,
)
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.transport import client_address

AdmittedMessage = pb.FindLobbyRequest | pb.JoinLobbyRequest | pb.CreateLobbyRequest
Result = TypeVar("Result")


class Admission:
    def __init__(
        self,
        native: NativeMatchmaker,
        engine: Engine,
        namespaces: NamespaceIndex,
        captcha: CaptchaCheck,
        verification: VerificationCheck,
    ) -> None:
        self._native = native
        self._engine = engine
        self._namespaces = namespaces
        self._captcha = captcha
        self._verification = verification
        self._flights: SingleFlight[bytes, Any] = SingleFlight()

    async def find(self, request: EncodedRequest) -> list[str]:
        """Checks captcha and verification of a find. Returns the admitted game modes.

        Raises CAPTCHA_REQUIRED, CAPTCHA_FAILED, MATCHMAKER_VERIFICATION_UNAVAILABLE, and the errors
        of a find that the configuration does not allow. Raises MATCHMAKER_VERIFICATION_FAILED if
        verification admits no mode.
        """
        first = self._native.placement(request)
        message = pb.FindLobbyRequest.FromString(first.message)
        max_players = message.max_players if message.HasField("max_players") else None

        async def admit() -> list[str]:
            attempt = self._attempt("find", message, _player(first, request))
            attempt.details = replace(
                attempt.details, tags=dict(message.tags), max_players=max_players
            )
            while True:
                namespace = self._namespaces.resolved(first.namespace)
                modes = self._native.placement(request).modes
                if namespace.admission_rules is not None:
                    modes = await attempt.find(namespace.admission_rules, modes)
                if self._namespaces.resolved(first.namespace) is namespace:
                    return modes

        return await self._run_shared(first.idempotency, request.call.deadline, admit)

    async def create(
        self,
        message: pb.CreateLobbyRequest,
        caller: Caller,
        target: Callable[[], CreateTarget],
        idempotency: bytes | None,
    ) -> CreateTarget:
        """Checks captcha and verification of a create. Returns the target of the new lobby.

        `target` returns it by the current configuration.
        """

        async def admit() -> CreateTarget:
            attempt = self._attempt("create", message, _player_of(caller))
            attempt.details = replace(
                attempt.details,
                tags=dict(message.tags),
                max_players=message.max_players if message.HasField("max_players") else None,
                config=message.lobby_config if message.HasField("lobby_config") else None,
            )
            while True:
                namespace = self._namespaces.resolved(caller.namespace_id)
                new_lobby = target()
                if namespace.admission_rules is not None:
                    rules, mode = namespace.admission_rules, new_lobby.mode.name
                    await attempt.join(rules.captcha, rules.create.get(mode), mode)
                if self._namespaces.resolved(caller.namespace_id) is namespace:
                    return new_lobby

        return await self._run_shared(idempotency, caller.call.deadline, admit)

    async def join(self, request: EncodedRequest) -> None:
        """Checks captcha and verification of a join by the rules of the lobby's version."""
        first = self._native.placement(request)
        message = pb.JoinLobbyRequest.FromString(first.message)
        lobby_id = raw_id(message.lobby_id)

        async def admit() -> None:
            attempt = self._attempt("join", message, _player(first, request))
            while True:
                namespace = self._namespaces.resolved(first.namespace)
                lobby = self._engine.lobby(lobby_id)
                if lobby is not None and namespace.admission_rules is not None:
                    attempt.details = replace(
                        attempt.details,
                        lobby=lobby,
                        state=await self._engine.state([first.namespace], lobby_id, None),
                    )
                    join_rules = namespace.admission_rules.join(lobby.version, lobby.mode)
                    await attempt.join(join_rules.captcha, join_rules.verification, lobby.mode)
                if self._namespaces.resolved(first.namespace) is namespace:
                    return

        await self._run_shared(first.idempotency, request.call.deadline, admit)

    async def _run_shared(
        self,
        key: bytes | None,
        deadline: float | None,
        work: Callable[[], Coroutine[Any, Any, Result]],
    ) -> Result:
        try:
            async with asyncio.timeout_at(deadline):
                result: Result = await (work() if key is None else self._flights.run(key, work))
                return result
        except TimeoutError:
            raise ServiceError("DEADLINE_EXCEEDED") from None

    def _attempt(
        self, kind: PlayerAction, message: AdmittedMessage, player: _Player
    ) -> _AdmissionAttempt:
        address = player.call.client
        if player.is_of_back_end:
            address = client_address.parse_address(message.client_address)
        details = VerificationRequest(
            kind=kind,
            tenant=self._namespaces.resolved(player.namespace_id).tenant,
            namespace_id=player.namespace_id,
            party_size=message.party_size or 1,
            verification_data=(
                message.verification_data if message.HasField("verification_data") else None
            ),
            address=None if address is None else str(address),
            user_agent=player.call.user_agent,
            ray_id=player.call.ray_id,
        )
        return _AdmissionAttempt(
            self._captcha,
            self._verification,
            details,
            None if address is None else client_address.packed_client(address),
            message.captcha if message.HasField("captcha") else None,
        )


@dataclass(frozen=True, slots=True)
class _Player:
    namespace_id: bytes
    is_of_back_end: bool
    """Whether a back end with an `env_` token calls for the player. It may name the address."""
    call: Call


def _player(placement: PlacementRequest, request: EncodedRequest) -> _Player:
    return _Player(placement.namespace, placement.is_of_back_end, request.call)


def _player_of(caller: Caller) -> _Player:
    return _Player(caller.namespace_id, caller.kind is TokenKind.SERVICE, caller.call)


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
