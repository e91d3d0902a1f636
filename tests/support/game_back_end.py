"""Back end of a game, which uploads builds with a service token."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.full_service import Developer, ServiceResponse
from tests.support.upload_files import put, tar


class GameBackEnd:
    """Game back end with a service token of a namespace."""

    def __init__(self, developer: Developer, game_id: str, token: str) -> None:
        self.developer = developer
        self.game_id = game_id
        self.token = token

    async def call(self, slug: str, key: str | None = None, **fields: Any) -> ServiceResponse:
        target = {"game_id": self.game_id, "environment_id": "prod", **fields}
        return await self.developer.client.call(slug, target, token=self.token, key=key)

    async def good(self, slug: str, **fields: Any) -> Any:
        answer = await self.call(slug, **fields)
        assert answer.code == "OK", answer
        return answer.body

    async def prepare(self, content: bytes, **fields: Any) -> Any:
        image = {"path": "server.tar", "content_length": len(content), **fields.pop("image", {})}
        return await self.good("prepare_build", name="server", image_file=image, **fields)

    async def build(self, content: bytes | None = None, **fields: Any) -> str:
        content = tar() if content is None else content
        created = await self.prepare(content, **fields)
        assert (await put(created["image_presigned_request"], content)).status_code == 200
        await self.good("complete_build", build_id=created["build"]["id"])
        return str(created["build"]["id"])

    async def refused(self, content: bytes, **fields: Any) -> ServiceResponse:
        created = await self.prepare(content, **fields)
        assert (await put(created["image_presigned_request"], content)).status_code == 200
        return await self.call("complete_build", build_id=created["build"]["id"])

    async def listed(self, **fields: Any) -> list[str]:
        return [one["id"] for one in (await self.good("list_builds", **fields))["builds"]]


@pytest.fixture
async def back_end(owner: Developer) -> GameBackEnd:
    game_id = await owner.game()
    return GameBackEnd(owner, game_id, await owner.service_token(game_id))
