"""Default quotas: the records of a small studio fit, with room to grow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from tests.control.new_developers import new_developer
from tests.control.service_fixtures import service_fixture
from tests.support.full_service import ARENA_MODES, Developer
from tests.support.namespace_scenario import Records

pytestmark = pytest.mark.anyio

NAMESPACES: Final = ("prod", "staging", "test")
VERSIONS, BUILDS, SITES, TOKENS = 20, 10, 5, 50
BUILD_BYTES, SITE_BYTES = 500_000_000, 50_000_000
ROOM: Final = 4
"""A quota has room for this many times the records of a small studio."""

full_service = service_fixture("module", quotas={})


@pytest.mark.full
async def test_small_studio_fits_into_the_default_quotas(
    developer: Developer, records: Records
) -> None:
    studio, group_id = await new_developer(developer, records)
    game_id = await studio.game(developer_group_id=group_id)

    def create(slug: str, **fields: Any) -> Awaitable[Any]:
        return studio.good(slug, game_id=game_id, **fields)

    config = {"matchmaker": {"game_modes": ARENA_MODES}}
    versions = [
        (await create("create_version", display_name=f"1.0.{number}", config=config))["version_id"]
        for number in range(VERSIONS)
    ]
    fields = {"name_id": NAMESPACES[-1], "display_name": "Test", "version_id": versions[0]}
    await create("create_namespace", **fields)
    for name, version_id in zip(NAMESPACES, versions, strict=False):
        await create("set_version", namespace_id=name, version_id=version_id)
    image = {"path": "server.tar", "content_length": BUILD_BYTES}
    for _ in range(BUILDS):
        await create("create_game_build", display_name="Server", image_file=image)
    files = [{"path": "index.html", "content_length": SITE_BYTES}]
    for _ in range(SITES):
        await create("create_site", display_name="Site", files=files)
    kinds: list[Callable[[str], Awaitable[Any]]] = [
        lambda name: create("create_service_token", environment_id=name),
        lambda name: create("create_public_token", namespace_id=name),
        lambda name: create("create_development_token", namespace_id=name, ports={}),
        lambda name: create("create_game_token"),
    ]
    for number in range(TOKENS):
        await kinds[number % len(kinds)](NAMESPACES[number % len(NAMESPACES)])

    rows = (await studio.good("get_quotas", group_id=group_id))["quotas"]
    uses = {row["quota"]: row["use"] for row in rows}
    assert all(row["is_default"] for row in rows)
    assert (uses["namespaces"], uses["builds"], uses["sites"]) == (len(NAMESPACES), BUILDS, SITES)
    assert uses["versions"] > VERSIONS
    tight = [row for row in rows if row["use"] * ROOM > row["limit"]]
    assert tight == []
