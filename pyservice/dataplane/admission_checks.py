"""Admission checks that other servers make: captcha providers and the game's verification server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlencode

import orjson
from yarl import URL

from pyservice.dataplane.engine_commands import PlayerRecords
from pyservice.dataplane.native import Lobby
from pyservice.dataplane.outbound_http import NoUsableResponse, OutboundHttpClient
from pyservice.dataplane.resolved_namespace import CaptchaProvider, CaptchaRule, VerificationRule
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.timestamps import rfc3339

_captcha_log = get_logger("captcha")

_BODY_LIMIT: Final = 64 << 10
_FORM_HEADERS: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_LOGGED_CODES: Final = 4


class CaptchaCheck:
    def __init__(
        self,
        outbound: OutboundHttpClient,
        passes: PlayerRecords,
        endpoints: Mapping[CaptchaProvider, str],
    ) -> None:
        self._outbound = outbound
        self._passes = passes
        self._endpoints = endpoints

    async def require_human(
        self,
        rule: CaptchaRule,
        namespace_id: bytes,
        address: bytes,
        address_text: str,
        solution: pb.Captcha | None,
        ray_id: str,
        *,
        tenant: bytes,
    ) -> None:
        """Requires that the address has a recent captcha pass, or that `solution` is a valid
        captcha response.

        Raises CAPTCHA_REQUIRED, CAPTCHA_FAILED, STORAGE_FULL. Raises
        MATCHMAKER_VERIFICATION_UNAVAILABLE if the captcha provider does not respond.
        """
        ago_ms, requests = self._passes.last_pass(namespace_id, address)
        if ago_ms is not None and ago_ms < rule.ttl_ms and requests < rule.requests:
            self._passes.record_request(namespace_id, address)
            return
        keys = dict(rule.providers)
        provider = _provider(solution)
        if solution is None or provider is None or provider not in keys:
            name, first_keys = rule.providers[0]
            raise ServiceError(
                "CAPTCHA_REQUIRED", metadata={"provider": name, "site_key": first_keys.site_key}
            )
        form = {
            "secret": keys[provider].secret_key,
            "response": getattr(solution, provider).client_response,
            "remoteip": address_text,
        }
        if provider == "captcha_a":
            form["sitekey"] = keys[provider].site_key
        if not await self._verify(provider, form, ray_id, tenant):
            raise ServiceError("CAPTCHA_FAILED")
        await self._passes.record_pass(namespace_id, address)

    async def _verify(
        self, provider: CaptchaProvider, form: Mapping[str, str], ray_id: str, tenant: bytes
    ) -> bool:
        endpoint = self._endpoints.get(provider)
        try:
            if endpoint is None:
                raise NoUsableResponse(f"captcha.{provider}_url is not set")
            content = urlencode(form).encode()
            response = await self._outbound.post(
                endpoint, content, _FORM_HEADERS, ray_id, _BODY_LIMIT, tenant=tenant
            )
            if not 200 <= response.status < 300:
                raise NoUsableResponse(f"status {response.status}")
            result = _object(response.body)
        except NoUsableResponse as error:
            _captcha_log.warning(
                "captcha provider sent no usable response", provider=provider, reason=str(error)
            )
            raise ServiceError(
                "MATCHMAKER_VERIFICATION_UNAVAILABLE",
                "The captcha provider sent no usable response. Try again.",
            ) from None
        if result.get("success") is True:
            return True
        _captcha_log.info("captcha not passed", provider=provider, errors=_codes(result))
        return False


def _provider(solution: pb.Captcha | None) -> CaptchaProvider | None:
    match solution.WhichOneof("provider") if solution is not None else None:
        case "captcha_a":
            return "captcha_a"
        case "captcha_b":
            return "captcha_b"
    return None


def _object(body: bytes) -> dict[str, object]:
    try:
        result = orjson.loads(body)
    except ValueError:
        raise NoUsableResponse("a response that is not JSON") from None
    if not isinstance(result, dict):
        raise NoUsableResponse("a response that is not a JSON object")
    return result


def _codes(result: Mapping[str, object]) -> list[str]:
    codes = result.get("error-codes")
    if not isinstance(codes, list):
        return []
    return [str(code)[:64] for code in codes[:_LOGGED_CODES]]


_verification_log = get_logger("verification")

_JSON_HEADERS: Final = {"Content-Type": "application/json"}

PlayerAction = Literal["find", "join", "create"]


@dataclass(frozen=True, slots=True)
class VerificationRequest:
    kind: PlayerAction
    tenant: bytes
    """For the fair queue, not sent."""
    namespace_id: bytes
    party_size: int
    verification_data: bytes | None
    address: str | None
    user_agent: str | None
    ray_id: str
    lobby: Lobby | None = None
    state: bytes | None = None
    config: bytes | None = None
    tags: Mapping[str, str] | None = None
    max_players: int | None = None


class VerificationCheck:
    def __init__(self, outbound: OutboundHttpClient) -> None:
        self._outbound = outbound

    async def allows(
        self, rule: VerificationRule, mode: str, question: VerificationRequest
    ) -> bool:
        """Returns True if the verification server responds with a 2xx status, and False for a 4xx
        status.

        Raises MATCHMAKER_VERIFICATION_UNAVAILABLE in all other cases.
        """
        try:
            response = await self._outbound.post(
                rule.url,
                verification_body(mode, question),
                {**dict(rule.headers), **_JSON_HEADERS},
                question.ray_id,
                tenant=question.tenant,
            )
            if 200 <= response.status < 300:
                return True
            if 400 <= response.status < 500:
                return False
            reason = f"status {response.status}"
        except NoUsableResponse as error:
            reason = str(error)
        _verification_log.warning(
            "verification server sent no usable response",
            namespace_id=format_uuid(question.namespace_id),
            game_mode=mode,
            kind=question.kind,
            host=_url_host(rule.url),
            reason=reason,
        )
        raise ServiceError("MATCHMAKER_VERIFICATION_UNAVAILABLE")


def verification_body(mode: str, question: VerificationRequest) -> bytes:
    return orjson.dumps(
        {
            "verification_data": _json_fragment(question.verification_data),
            "game": {
                "namespace_id": format_uuid(question.namespace_id),
                "game_mode": mode,
                "lobby": None if question.lobby is None else _lobby(question.lobby),
                "state": _json_fragment(question.state),
                "config": _json_fragment(question.config),
                "tags": None if question.tags is None else dict(question.tags),
                "max_players": question.max_players,
            },
            "client": {"address": question.address, "user_agent": question.user_agent},
            "kind": question.kind,
            "party_size": question.party_size,
        }
    )


def _lobby(lobby: Lobby) -> dict[str, Any]:
    return {
        "lobby_id": format_uuid(lobby.id),
        "region_id": lobby.region,
        "create_ts": rfc3339(lobby.create_ts_ms),
        "is_closed": lobby.is_closed,
    }


def _json_fragment(text: bytes | None) -> orjson.Fragment | None:
    return orjson.Fragment(text) if text else None


def _url_host(url: str) -> str:
    try:
        return URL(url).host or ""
    except ValueError:
        return ""
