"""Whether a client address has proved that a human is there, and asking a provider when it says so
(decisions 7).

Owns when a proof is needed and what a provider's answer means. Who remembers proofs is an interface
here: they survive a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol
from urllib.parse import urlencode

import orjson

from pyservice.dataplane.gates import CaptchaRule, Provider
from pyservice.dataplane.outbound import Outbound, Unanswered
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

_log = get_logger("captcha")

_BODY_LIMIT: Final = 64 << 10
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_TOLD_CODES: Final = 4


class Standings(Protocol):
    """Which client addresses have passed, per namespace. An address is packed (4 or 8 bytes)."""

    def standing(self, namespace: bytes, address: bytes) -> tuple[int | None, int]:
        """(when it passed, Unix ms by the wall clock as it goes now; requests since). None: it never
        did, or too long ago to count.
        """

    async def note_human(self, namespace: bytes, address: bytes, deadline: float | None) -> None:
        """It passed now; the requests since are none. Answers when that is durable."""

    def note_request(self, namespace: bytes, address: bytes) -> None:
        """One request more came on the strength of the proof."""


class Captcha:
    """Lets in who has passed lately or passes now."""

    def __init__(
        self,
        outbound: Outbound,
        standings: Standings,
        endpoints: Mapping[Provider, str],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`endpoints`: where each provider is asked. `now_ms`: the clock of `standings`."""
        self._outbound = outbound
        self._standings = standings
        self._endpoints = endpoints
        self._now_ms = now_ms

    async def require_human(
        self,
        rule: CaptchaRule,
        namespace_id: bytes,
        address: bytes,
        address_text: str,
        given: pb.Captcha | None,
        ray_id: str,
        *,
        tenant: bytes,
    ) -> None:
        """Returns when a human asks; a provider is asked on account of the tenant. Raises
        CAPTCHA_REQUIRED, CAPTCHA_FAILED, MATCHMAKER_VERIFICATION_UNAVAILABLE when the provider gives no
        answer, STORAGE_FULL.
        """
        passed_ms, requests = self._standings.standing(namespace_id, address)
        is_good = (
            passed_ms is not None
            and self._now_ms() - passed_ms < rule.ttl_ms
            and requests < rule.requests
        )
        if is_good:
            self._standings.note_request(namespace_id, address)
            return
        keys = dict(rule.providers)
        provider = _provider(given)
        if given is None or provider is None or provider not in keys:
            name, asked = rule.providers[0]
            raise ServiceError(
                "CAPTCHA_REQUIRED", metadata={"provider": name, "site_key": asked.site_key}
            )
        form = {
            "secret": keys[provider].secret_key,
            "response": getattr(given, provider).client_response,
            "remoteip": address_text,
        }
        if provider == "captcha_a":
            form["sitekey"] = keys[provider].site_key
        if not await self._passes(provider, form, ray_id, tenant):
            raise ServiceError("CAPTCHA_FAILED")
        await self._standings.note_human(namespace_id, address, None)

    async def _passes(
        self, provider: Provider, form: Mapping[str, str], ray_id: str, tenant: bytes
    ) -> bool:
        endpoint = self._endpoints.get(provider)
        try:
            if endpoint is None:
                raise Unanswered(f"captcha.{provider}_url is not set")
            content = urlencode(form).encode()
            answer = await self._outbound.post(
                endpoint, content, _FORM, ray_id, _BODY_LIMIT, tenant=tenant
            )
            if not 200 <= answer.status < 300:
                raise Unanswered(f"status {answer.status}")
            told = _object(answer.body)
        except Unanswered as error:
            _log.warning("captcha provider gave no answer", provider=provider, reason=str(error))
            raise ServiceError(
                "MATCHMAKER_VERIFICATION_UNAVAILABLE",
                "Try again; the captcha provider did not answer as it should.",
            ) from None
        if told.get("success") is True:
            return True
        _log.info("captcha not passed", provider=provider, errors=_codes(told))
        return False


def _provider(given: pb.Captcha | None) -> Provider | None:
    match given.WhichOneof("provider") if given is not None else None:
        case "captcha_a":
            return "captcha_a"
        case "captcha_b":
            return "captcha_b"
    return None


def _object(body: bytes) -> dict[str, object]:
    """The JSON object of an answer. Raises Unanswered for anything else."""
    try:
        told = orjson.loads(body)
    except ValueError:
        raise Unanswered("an answer that is not JSON") from None
    if not isinstance(told, dict):
        raise Unanswered("an answer that is not a JSON object")
    return told


def _codes(told: Mapping[str, object]) -> list[str]:
    """Why, in the provider's words: a wrong secret is the developer's to mend."""
    codes = told.get("error-codes")
    if not isinstance(codes, list):
        return []
    return [str(code)[:64] for code in codes[:_TOLD_CODES]]
