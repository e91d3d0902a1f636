"""Placeholders and error cases for device links."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import httpx

from pyservice.control.device_links import LINK_LIFETIME_MS, DeviceLinkKeys
from pyservice.control.signing_keys import SigningKeyFile
from tests.contract.error_cases import elsewhere, error_case
from tests.contract.scenario import Scenario, placeholder
from tests.contract.service_errors import SWEEPS


@placeholder("device_link_token")
def _(scenario: Scenario) -> str:
    return str(scenario.good("prepare_device_link")["device_link_token"])


def _signed(scenario: Scenario, lives_ms: int) -> str:
    keys = DeviceLinkKeys(SigningKeyFile.load_or_create(scenario.service.data_dir / "control"))
    end_ms = time.time_ns() // 1_000_000 + lives_ms
    return keys.link_token(str(uuid4()), end_ms, keys.current)


def _show(scenario: Scenario, slug: str, token: str) -> httpx.Response:
    query = {"device_link_token": token}
    if slug == "get_device_link":
        return scenario.call(slug, query=query)
    return scenario.call(slug, fields=query)


def _of_link(slug: str) -> None:
    @error_case(slug, "DEVICE_LINK_NOT_FOUND")
    def _(scenario: Scenario) -> httpx.Response:
        return _show(scenario, slug, _signed(scenario, LINK_LIFETIME_MS))


for _slug in ("get_device_link", "complete_device_link"):
    _of_link(_slug)


@error_case("get_device_link", "TOKEN_INVALID")
def _(scenario: Scenario) -> httpx.Response:
    return _show(scenario, "get_device_link", "link_AAAA")


@error_case("get_device_link", "TOKEN_EXPIRED")
def _(scenario: Scenario) -> httpx.Response:
    return _show(scenario, "get_device_link", _signed(scenario, -1))


def _of_caller(
    code: str, link: Callable[[Scenario], str], bearer: Callable[[Scenario], str]
) -> None:
    @error_case("complete_device_link", code)
    def _(scenario: Scenario) -> httpx.Response:
        refusal = scenario.call("complete_device_link", bearer=bearer(scenario))
        assert refusal.json()["code"] == code, refusal.text
        return _show(scenario, "complete_device_link", link(scenario))


_of_caller("TOKEN_INVALID", lambda _: "link_AAAA", lambda _: f"cloud_{'A' * 24}")
_of_caller(
    "TOKEN_EXPIRED",
    lambda scenario: _signed(scenario, -1),
    lambda scenario: scenario.value("expired cloud"),
)


@error_case("complete_device_link", "DEVICE_LINK_USED")
def _(scenario: Scenario) -> httpx.Response:
    scenario.good("complete_device_link")
    return scenario.call("complete_device_link")


elsewhere(
    "prepare_device_link",
    "IDEMPOTENCY_KEY_REUSED",
    f"{SWEEPS}::test_tokenless_repeat_after_key_file_restore_is_not_replayed",
    "the message is empty, so no other message can reuse the key without a token",
)
