"""Authorization table rows for uploads. Each valid request has its own upload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from tests.control.authorization import Fields, Row, Scope
from tests.control.files import png, put, tar
from tests.control.namespace_scenario import NamespaceScenario

_ELSEWHERE: Final = "NAMESPACE_NOT_FOUND"


def _image(content: bytes) -> Fields:
    return {"path": "server.tar", "content_length": len(content)}


def _picture() -> Fields:
    return {"path": "a.png", "content_length": len(png())}


def _of_game(make: Callable[[], Fields] = dict) -> Callable[[NamespaceScenario], Awaitable[Fields]]:
    async def fields(scenario: NamespaceScenario) -> Fields:
        return {"game_id": scenario.game_id, **make()}

    return fields


def _of_environment(
    make: Callable[[], Fields] = dict,
) -> Callable[[NamespaceScenario], Awaitable[Fields]]:
    async def fields(scenario: NamespaceScenario) -> Fields:
        return {"game_id": scenario.game_id, "environment_id": "prod", **make()}

    return fields


async def _uploaded(scenario: NamespaceScenario) -> Any:
    content = tar()
    fields: Fields = {
        "game_id": scenario.game_id,
        "display_name": "x",
        "image_file": _image(content),
    }
    created = await scenario.owner.good("create_game_build", **fields)
    assert (await put(created["image_presigned_request"], content)).status_code == 200
    return created


async def _upload(scenario: NamespaceScenario) -> Fields:
    return {"upload_id": (await _uploaded(scenario))["upload_id"]}


async def _build(scenario: NamespaceScenario) -> Fields:
    return {"game_id": scenario.game_id, "build_id": (await _uploaded(scenario))["build_id"]}


async def _build_of_environment(scenario: NamespaceScenario) -> Fields:
    return {"environment_id": "prod", **await _build(scenario)}


async def _old_build(scenario: NamespaceScenario) -> Fields:
    return {"game_id": scenario.game_id, "environment_id": "prod", "build_id": scenario.build_id}


async def _build_to_tag(scenario: NamespaceScenario) -> Fields:
    return {**await _build_of_environment(scenario), "tags": {"name": uuid4().hex}}


def _completed(slug: str) -> Callable[[NamespaceScenario], Awaitable[Fields]]:
    async def fields(scenario: NamespaceScenario) -> Fields:
        created = await scenario.owner.good(slug, game_id=scenario.game_id, **_picture())
        assert (await put(created["presigned_request"], png())).status_code == 200
        return {"game_id": scenario.game_id, "upload_id": created["upload_id"]}

    return fields


def _files() -> Fields:
    return {"display_name": "x", "files": [{"path": "index.html", "content_length": 1}]}


_UPLOADED: Final = frozenset({"uploads", "upload_files"})
_PREPARED: Final = frozenset({*_UPLOADED, "builds"})

ROWS: Final = (
    Row("list_builds", Scope.ENVIRONMENT, _of_environment(),
        shows=lambda scenario: scenario.build_id, elsewhere=_ELSEWHERE),
    Row("prepare_build", Scope.ENVIRONMENT,
        _of_environment(lambda: {"name": "x", "image_file": _image(tar())}),
        changes=_PREPARED, elsewhere=_ELSEWHERE),
    Row("complete_build", Scope.ENVIRONMENT, _build_of_environment,
        changes=_UPLOADED, elsewhere=_ELSEWHERE),
    Row("get_build", Scope.ENVIRONMENT, _old_build,
        shows=lambda scenario: scenario.build_id, elsewhere=_ELSEWHERE),
    Row("patch_build_tags", Scope.ENVIRONMENT, _build_to_tag,
        changes=frozenset({"build_tags"}), elsewhere=_ELSEWHERE),
    Row("list_game_builds", Scope.GAME, _of_game(), shows=lambda scenario: scenario.build_id),
    Row("create_game_build", Scope.GAME,
        _of_game(lambda: {"display_name": "x", "image_file": _image(tar())}),
        changes=_PREPARED),
    Row("delete_build", Scope.GAME, _build, changes=_PREPARED),
    Row("complete_upload", Scope.GAME, _upload, changes=_UPLOADED, missing="UPLOAD_NOT_FOUND"),
    Row("create_site", Scope.GAME, _of_game(_files), changes=frozenset({*_UPLOADED, "sites"})),
    Row("list_sites", Scope.GAME, _of_game(), shows=lambda scenario: scenario.site_id),
    Row("prepare_avatar", Scope.GAME, _of_game(_picture), changes=_UPLOADED),
    Row("complete_avatar", Scope.GAME, _completed("prepare_avatar"),
        changes=frozenset({"uploads"})),
    Row("list_avatars", Scope.GAME, _of_game(), shows=lambda scenario: scenario.avatar_id),
    Row("prepare_banner", Scope.GAME, _of_game(_picture), changes=_UPLOADED),
    Row("complete_banner", Scope.GAME, _completed("prepare_banner"),
        changes=frozenset({"uploads", "games"})),
    Row("prepare_logo", Scope.GAME, _of_game(_picture), changes=_UPLOADED),
    Row("complete_logo", Scope.GAME, _completed("prepare_logo"),
        changes=frozenset({"uploads", "games"})),
)  # fmt: skip
