"""Device links: made, completed, and how each refusal of their tokens comes about."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import httpx

from pyservice.control.device_links import LINK_LIFETIME_MS, DeviceLinkKeys
from pyservice.control.signing_keys import SigningKeyFile
from tests.contract.conditions import SWEEPS
from tests.contract.provocations import elsewhere, provokes
from tests.contract.scene import Scene, place


@place("device_link_token")
def _(scene: Scene) -> str:
    """A link that nobody has completed."""
    return str(scene.good("prepare_device_link")["device_link_token"])


def _signed(scene: Scene, lives_ms: int) -> str:
    """The token, by the service's own key, of a link that the records do not have."""
    keys = DeviceLinkKeys(SigningKeyFile.load_or_create(scene.service.data_dir / "control"))
    end_ms = time.time_ns() // 1_000_000 + lives_ms
    return keys.link_token(str(uuid4()), end_ms, keys.current)


def _show(scene: Scene, slug: str, token: str) -> httpx.Response:
    shown = {"device_link_token": token}
    if slug == "get_device_link":
        return scene.call(slug, query=shown)
    return scene.call(slug, fields=shown)


def _of_link(slug: str) -> None:
    @provokes(slug, "DEVICE_LINK_NOT_FOUND")
    def _(scene: Scene) -> httpx.Response:
        return _show(scene, slug, _signed(scene, LINK_LIFETIME_MS))


for _slug in ("get_device_link", "complete_device_link"):
    _of_link(_slug)


@provokes("get_device_link", "TOKEN_INVALID")
def _(scene: Scene) -> httpx.Response:
    return _show(scene, "get_device_link", "link_AAAA")


@provokes("get_device_link", "TOKEN_EXPIRED")
def _(scene: Scene) -> httpx.Response:
    return _show(scene, "get_device_link", _signed(scene, -1))


def _of_whom(code: str, link: Callable[[Scene], str], bearer: Callable[[Scene], str]) -> None:
    @provokes("complete_device_link", code)
    def _(scene: Scene) -> httpx.Response:
        """Of the link, or of who completes it: the words are the same."""
        refused = scene.call("complete_device_link", bearer=bearer(scene))
        assert refused.json()["code"] == code, refused.text
        return _show(scene, "complete_device_link", link(scene))


_of_whom("TOKEN_INVALID", lambda _: "link_AAAA", lambda _: f"cloud_{'A' * 24}")
_of_whom(
    "TOKEN_EXPIRED",
    lambda scene: _signed(scene, -1),
    lambda scene: scene.value("expired cloud"),
)


@provokes("complete_device_link", "DEVICE_LINK_USED")
def _(scene: Scene) -> httpx.Response:
    scene.good("complete_device_link")
    return scene.call("complete_device_link")


elsewhere(
    "prepare_device_link",
    "IDEMPOTENCY_KEY_REUSED",
    f"{SWEEPS}::test_who_asks_without_a_token_cannot_repeat_what_an_older_key_file_remembered",
    "its message is empty and it alone changes something without a token: a key meets no other message",
)
