"""Error cases of changes that the data plane refuses: the namespace requests a domain of another
namespace.
"""

from __future__ import annotations

import httpx

from tests.contract.error_cases import error_case
from tests.contract.scenario import CLAIMED, Scenario
from tests.support.data_plane_service import GAME

BLOCKED = "blocked"


def blocked_token(scenario: Scenario) -> str:
    def create() -> str:
        base = f"/cloud/games/{GAME}/namespaces"
        version_id = scenario.served_game.version_id
        names = {"display_name": BLOCKED, "name_id": BLOCKED, "version_id": version_id}
        scenario.served_game.cloud("POST", base, names)
        token = scenario.served_game.cloud("POST", f"{base}/{BLOCKED}/tokens/public", {})
        path = f"{base}/{BLOCKED}/domains"
        answer = scenario.service.ask(
            "POST", path, {"domain": CLAIMED}, scenario.served_game.cloud_token
        )
        assert answer.json()["code"] == "VALIDATION_FAILED", answer.text
        return str(token["token_id"])

    return scenario.served_game.once("blocked", create)


def _refused(slug: str, named: str = "namespace_id") -> None:
    @error_case(slug, "VALIDATION_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        path = {named: BLOCKED}
        token_id = blocked_token(scenario)
        if slug == "revoke_namespace_token":
            path["token_id"] = token_id
        return scenario.call(slug, path=path)


_refused("create_service_token", "environment_id")
for _slug in (
    *("set_version", "set_domain_public_auth", "remove_domain"),
    *("create_public_token", "revoke_namespace_token"),
):
    _refused(_slug)
