"""Device links: made, completed, and how each refusal of their tokens comes about."""

from __future__ import annotations

import time
from uuid import uuid4

import httpx

from pyservice.control.devices import LIVES_MS, LinkKey
from tests.contract.provocations import later, provokes
from tests.contract.scene import Scene, place


@place("device_link_token")
def _(scene: Scene) -> str:
    """A link that nobody has completed."""
    return str(scene.good("prepare_device_link")["device_link_token"])


def _signed(scene: Scene, lives_ms: int) -> str:
    """The token, by the service's own key, of a link that the records do not have."""
    key = LinkKey.load_or_create(scene.service.data_dir / "control")
    return key.link_token(str(uuid4()), time.time_ns() // 1_000_000 + lives_ms)


def _show(scene: Scene, slug: str, token: str) -> httpx.Response:
    shown = {"device_link_token": token}
    if slug == "get_device_link":
        return scene.call(slug, query=shown)
    return scene.call(slug, fields=shown)


def _of_link(slug: str) -> None:
    @provokes(slug, "DEVICE_LINK_NOT_FOUND")
    def _(scene: Scene) -> httpx.Response:
        return _show(scene, slug, _signed(scene, LIVES_MS))

    @provokes(slug, "TOKEN_EXPIRED")
    def _(scene: Scene) -> httpx.Response:
        return _show(scene, slug, _signed(scene, -1))


for _slug in ("get_device_link", "complete_device_link"):
    _of_link(_slug)


@provokes("get_device_link", "TOKEN_INVALID")
def _(scene: Scene) -> httpx.Response:
    return _show(scene, "get_device_link", "link_AAAA")


@provokes("complete_device_link", "TOKEN_INVALID")
def _(scene: Scene) -> httpx.Response:
    """Of the link, or of who completes it: the words are the same."""
    forged = scene.call("complete_device_link", bearer=f"cloud_{'A' * 24}")
    assert forged.json()["code"] == "TOKEN_INVALID"
    return _show(scene, "complete_device_link", "link_AAAA")


@provokes("complete_device_link", "DEVICE_LINK_USED")
def _(scene: Scene) -> httpx.Response:
    scene.good("complete_device_link")
    return scene.call("complete_device_link")


later(
    "prepare_device_link",
    "IDEMPOTENCY_KEY_REUSED",
    "its message is empty and it alone changes something without a token: a key meets no other message",
)
