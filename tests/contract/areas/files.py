"""What is uploaded: builds, sites, pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from tests.contract.provocations import provokes
from tests.contract.scene import Scene, place
from tests.control.files import png, tar

# What scenes need ---------------------------------------------------------------------------------


@place("environment_id", "Builds")
def _(scene: Scene) -> str:
    """The one that the scenes' service token is for."""
    return "prod"


def _put(scene: Scene, request: Any, content: bytes) -> None:
    answer = scene.service.client.put(request["url"], content=content)
    assert answer.status_code == 200, answer.text


def _new_build(scene: Scene, content: bytes, *, is_uploaded: bool = True) -> Any:
    image = {"path": "server.tar", "content_length": len(content)}
    made = scene.good("create_game_build", fields={"image_file": image})
    if is_uploaded:
        _put(scene, made["image_presigned_request"], content)
    return made


def build(scene: Scene) -> Any:
    """The scene's build: uploaded, to be completed."""
    return scene.once("build", lambda: _new_build(scene, tar()))


@place("build_id")
def _(scene: Scene) -> str:
    return str(build(scene)["build_id"])


@place("upload_id")
def _(scene: Scene) -> str:
    return str(build(scene)["upload_id"])


def _picture(scene: Scene, kind: str, content: bytes) -> str:
    fields = {"path": "picture.png", "content_length": len(content), "mime": "image/png"}
    made = scene.good(f"prepare_{kind}", fields=fields)
    _put(scene, made["presigned_request"], content)
    return str(made["upload_id"])


def _unsent_picture(scene: Scene, kind: str) -> str:
    return str(scene.good(f"prepare_{kind}")["upload_id"])


@place("avatar_upload_id")
def _(scene: Scene) -> str:
    return _picture(scene, "avatar", png())


@place("banner_upload_id")
def _(scene: Scene) -> str:
    return _picture(scene, "banner", png())


@place("logo_upload_id")
def _(scene: Scene) -> str:
    return _picture(scene, "logo", png())


# Codes --------------------------------------------------------------------------------------------

_KINDS = ("avatar", "banner", "logo")


def _too_large(slug: str, fields: Any) -> None:
    @provokes(slug, "UPLOAD_TOO_LARGE")
    def _(scene: Scene) -> httpx.Response:
        return scene.call(slug, fields=fields)


def _invalid(slug: str, **fields: Any) -> None:
    @provokes(slug, "VALIDATION_FAILED")
    def _(scene: Scene) -> httpx.Response:
        return scene.call(slug, fields=fields)


_LARGE_IMAGE = {"path": "server.tar", "content_length": (8 << 30) + 1}
_too_large("prepare_build", {"image_file": _LARGE_IMAGE})
_too_large("create_game_build", {"image_file": _LARGE_IMAGE})
_too_large("create_site", {"files": [{"path": "a", "content_length": (1 << 30) + 1}]})
_invalid("prepare_build", kind="diskette")
_invalid("create_game_build", compression="rar")
_invalid("create_site", files=[{"path": "../a", "content_length": 1}])
_invalid("patch_build_tags", tags={"": "x"})
for _kind in _KINDS:
    _too_large(f"prepare_{_kind}", {"content_length": (2 << 20) + 1})
    _invalid(f"prepare_{_kind}", path="picture.gif")


@provokes("delete_build", "IN_USE")
def _(scene: Scene) -> httpx.Response:
    scene.good("complete_upload")
    docker = {"image_id": build(scene)["build_id"], "ports": {"game": {"protocol": "tcp"}}}
    config = {"matchmaker": {"game_modes": {"duel": {"docker": docker}}}}
    scene.good("create_version", fields={"config": config})
    return scene.call("delete_build")


def _gone(slug: str, id_of: Callable[[Any], Any]) -> None:
    """A preparation that is repeated under its key when its build was deleted."""

    @provokes(slug, "UPLOAD_NOT_FOUND")
    def _(scene: Scene) -> httpx.Response:
        key = {"idempotency-key": scene.name}
        made = scene.good(slug, headers=key)
        scene.good("delete_build", path={"build_id": id_of(made)})
        return scene.call(slug, headers=key)


_gone("create_game_build", lambda made: made["build_id"])
_gone("prepare_build", lambda made: made["build"]["id"])


@provokes("list_builds", "QUERY_INVALID")
def _(scene: Scene) -> httpx.Response:
    return scene.call("list_builds", query={"tags_json": "[]"})


def _of_build(slug: str, named: str) -> None:
    """Completions of a build, by its own id or by its upload's."""

    def call(scene: Scene, made: Any) -> httpx.Response:
        return scene.call(slug, path={named: made[named]})

    @provokes(slug, "UPLOAD_INCOMPLETE")
    def _(scene: Scene) -> httpx.Response:
        return call(scene, _new_build(scene, tar(), is_uploaded=False))

    @provokes(slug, "VALIDATION_FAILED")
    def _(scene: Scene) -> httpx.Response:
        return call(scene, _new_build(scene, b"no tar" * 100))

    @provokes(slug, "UPLOAD_ALREADY_COMPLETE")
    def _(scene: Scene) -> httpx.Response:
        scene.good(slug)
        return scene.call(slug)


def _of_picture(kind: str) -> None:
    slug = f"complete_{kind}"

    @provokes(slug, "UPLOAD_INCOMPLETE")
    def _(scene: Scene) -> httpx.Response:
        return scene.call(slug, path={"upload_id": _unsent_picture(scene, kind)})

    @provokes(slug, "VALIDATION_FAILED")
    def _(scene: Scene) -> httpx.Response:
        return scene.call(slug, path={"upload_id": _picture(scene, kind, b"no picture")})

    @provokes(slug, "UPLOAD_ALREADY_COMPLETE")
    def _(scene: Scene) -> httpx.Response:
        scene.good(slug)
        return scene.call(slug)


_of_build("complete_build", "build_id")
_of_build("complete_upload", "upload_id")
for _kind in _KINDS:
    _of_picture(_kind)
