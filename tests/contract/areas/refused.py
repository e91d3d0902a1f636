"""Changes that the records take and the data plane does not: of a namespace that wants what another one has."""

from __future__ import annotations

import httpx

from tests.contract.provocations import provokes
from tests.contract.scene import CLAIMED, Scene
from tests.support.data_plane_service import GAME

BLOCKED = "blocked"


def blocked_token(scene: Scene) -> str:
    """Id of a token of the namespace that is refused, whatever changes in it."""

    def made() -> str:
        base = f"/cloud/games/{GAME}/namespaces"
        version_id = scene.world.version_id
        names = {"display_name": BLOCKED, "name_id": BLOCKED, "version_id": version_id}
        scene.world.cloud("POST", base, names)
        token = scene.world.cloud("POST", f"{base}/{BLOCKED}/tokens/public", {})
        path = f"{base}/{BLOCKED}/domains"
        answer = scene.service.ask("POST", path, {"domain": CLAIMED}, scene.world.cloud_token)
        assert answer.json()["code"] == "VALIDATION_FAILED", answer.text
        return str(token["token_id"])

    return scene.world.once("blocked", made)


def _refused(slug: str, named: str = "namespace_id") -> None:
    @provokes(slug, "VALIDATION_FAILED")
    def _(scene: Scene) -> httpx.Response:
        path = {named: BLOCKED}
        token_id = blocked_token(scene)
        if slug == "revoke_namespace_token":
            path["token_id"] = token_id
        return scene.call(slug, path=path)


_refused("create_service_token", "environment_id")
for _slug in (
    *("set_version", "set_domain_public_auth", "remove_domain"),
    *("create_public_token", "revoke_namespace_token"),
):
    _refused(_slug)
