"""Placeholders and error cases for builds, sites and pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from tests.contract.error_cases import error_case
from tests.contract.scenario import Scenario, before, placeholder
from tests.support.upload_files import png, tar


@placeholder("environment_id", "Builds")
def _(scenario: Scenario) -> str:
    return "prod"


def _put(scenario: Scenario, request: Any, content: bytes) -> None:
    answer = scenario.service.client.put(request["url"], content=content)
    assert answer.status_code == 200, answer.text


def _new_build(scenario: Scenario, content: bytes, *, is_uploaded: bool = True) -> Any:
    image = {"path": "server.tar", "content_length": len(content)}
    response = scenario.good("create_game_build", fields={"image_file": image})
    if is_uploaded:
        _put(scenario, response["image_presigned_request"], content)
    return response


def build(scenario: Scenario) -> Any:
    return scenario.once("build", lambda: _new_build(scenario, tar()))


@placeholder("build_id")
def _(scenario: Scenario) -> str:
    return str(build(scenario)["build_id"])


@placeholder("upload_id")
def _(scenario: Scenario) -> str:
    return str(build(scenario)["upload_id"])


def _picture(scenario: Scenario, kind: str, content: bytes) -> str:
    fields = {"path": "picture.png", "content_length": len(content), "mime": "image/png"}
    response = scenario.good(f"prepare_{kind}", fields=fields)
    _put(scenario, response["presigned_request"], content)
    return str(response["upload_id"])


def _unsent_picture(scenario: Scenario, kind: str) -> str:
    return str(scenario.good(f"prepare_{kind}")["upload_id"])


@placeholder("avatar_upload_id")
def _(scenario: Scenario) -> str:
    return _picture(scenario, "avatar", png())


@placeholder("banner_upload_id")
def _(scenario: Scenario) -> str:
    return _picture(scenario, "banner", png())


@placeholder("logo_upload_id")
def _(scenario: Scenario) -> str:
    return _picture(scenario, "logo", png())


_KINDS = ("avatar", "banner", "logo")


@before("delete_banner")
def _(scenario: Scenario) -> Any:
    return scenario.good("complete_banner")


@before("delete_logo")
def _(scenario: Scenario) -> Any:
    return scenario.good("complete_logo")


def _no_picture(slug: str) -> None:
    @error_case(slug, "UPLOAD_NOT_FOUND")
    def _(scenario: Scenario) -> httpx.Response:
        scenario.good(slug)
        return scenario.call(slug)


_no_picture("delete_banner")
_no_picture("delete_logo")


@placeholder("site_id")
def _(scenario: Scenario) -> str:
    return str(scenario.good("create_site")["site_id"])


@error_case("delete_site", "IN_USE")
def _(scenario: Scenario) -> httpx.Response:
    files = [{"path": "index.html", "content_length": 1}]
    site = scenario.good("create_site", fields={"files": files})
    _put(scenario, site["presigned_requests"][0], b"x")
    scenario.good("complete_upload", path={"upload_id": site["upload_id"]})
    scenario.good("create_version", fields={"config": {"cdn": {"site_id": site["site_id"]}}})
    return scenario.call("delete_site", path={"site_id": site["site_id"]})


def _too_large(slug: str, fields: Any) -> None:
    @error_case(slug, "UPLOAD_TOO_LARGE")
    def _(scenario: Scenario) -> httpx.Response:
        return scenario.call(slug, fields=fields)


def _invalid(slug: str, **fields: Any) -> None:
    @error_case(slug, "VALIDATION_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        return scenario.call(slug, fields=fields)


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


@error_case("delete_build", "IN_USE")
def _(scenario: Scenario) -> httpx.Response:
    scenario.good("complete_upload")
    docker = {"image_id": build(scenario)["build_id"], "ports": {"game": {"protocol": "tcp"}}}
    config = {"matchmaker": {"game_modes": {"duel": {"docker": docker}}}}
    scenario.good("create_version", fields={"config": config})
    return scenario.call("delete_build")


def _gone(slug: str, deletion: str, path: Callable[[Any], dict[str, str]]) -> None:
    @error_case(slug, "UPLOAD_NOT_FOUND")
    def _(scenario: Scenario) -> httpx.Response:
        key = {"idempotency-key": scenario.name}
        response = scenario.good(slug, headers=key)
        scenario.good(deletion, path=path(response))
        return scenario.call(slug, headers=key)


_gone("create_game_build", "delete_build", lambda build: {"build_id": build["build_id"]})
_gone("prepare_build", "delete_build", lambda build: {"build_id": build["build"]["id"]})


@error_case("list_builds", "QUERY_INVALID")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("list_builds", query={"tags_json": "[]"})


def _of_build(slug: str, named: str) -> None:
    def call(scenario: Scenario, build: Any) -> httpx.Response:
        return scenario.call(slug, path={named: build[named]})

    @error_case(slug, "UPLOAD_INCOMPLETE")
    def _(scenario: Scenario) -> httpx.Response:
        return call(scenario, _new_build(scenario, tar(), is_uploaded=False))

    @error_case(slug, "VALIDATION_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        return call(scenario, _new_build(scenario, b"no tar" * 100))

    @error_case(slug, "UPLOAD_ALREADY_COMPLETE")
    def _(scenario: Scenario) -> httpx.Response:
        scenario.good(slug)
        return scenario.call(slug)


def _of_picture(kind: str) -> None:
    slug = f"complete_{kind}"

    @error_case(slug, "UPLOAD_INCOMPLETE")
    def _(scenario: Scenario) -> httpx.Response:
        return scenario.call(slug, path={"upload_id": _unsent_picture(scenario, kind)})

    @error_case(slug, "VALIDATION_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        return scenario.call(slug, path={"upload_id": _picture(scenario, kind, b"no picture")})

    @error_case(slug, "UPLOAD_ALREADY_COMPLETE")
    def _(scenario: Scenario) -> httpx.Response:
        scenario.good(slug)
        return scenario.call(slug)


_of_build("complete_build", "build_id")
_of_build("complete_upload", "upload_id")
for _kind in _KINDS:
    _of_picture(_kind)
