"""Error cases of changes that the data plane refuses: the namespace requests a domain of another
namespace.
"""

from __future__ import annotations

from typing import NamedTuple

import httpx

from tests.contract.error_cases import error_case
from tests.contract.scenario import CLAIMED, Scenario
from tests.support.data_plane_service import GAME

BLOCKED = "blocked"


class BlockedToken(NamedTuple):
    token_id: str
    creator_id: str
    """Id of the `cloud_` token that created the token."""


def blocked_token(scenario: Scenario) -> BlockedToken:
    def create() -> BlockedToken:
        base = f"/cloud/games/{GAME}/namespaces"
        version_id = scenario.served_game.version_id
        names = {"display_name": BLOCKED, "name_id": BLOCKED, "version_id": version_id}
        scenario.served_game.cloud("POST", base, names)
        creator = scenario.served_game.cloud("POST", f"/cloud/games/{GAME}/tokens/cloud", {})
        path = f"{base}/{BLOCKED}/tokens/public"
        token = scenario.service.good("POST", path, {}, creator["token"])
        path = f"{base}/{BLOCKED}/domains"
        answer = scenario.service.ask(
            "POST", path, {"domain": CLAIMED}, scenario.served_game.cloud_token
        )
        assert answer.json()["code"] == "VALIDATION_FAILED", answer.text
        return BlockedToken(str(token["token_id"]), str(creator["token_id"]))

    return scenario.served_game.once("blocked", create)


def _refused(slug: str, named: str = "namespace_id") -> None:
    @error_case(slug, "VALIDATION_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        path = {named: BLOCKED}
        blocked = blocked_token(scenario)
        if slug == "revoke_namespace_token":
            path["token_id"] = blocked.token_id
        return scenario.call(slug, path=path)


@error_case("revoke_group_token", "VALIDATION_FAILED")
def _(scenario: Scenario) -> httpx.Response:
    path = {"token_id": blocked_token(scenario).creator_id}
    return scenario.call("revoke_group_token", path=path, query={"cascade": "true"})


_refused("create_service_token", "environment_id")
for _slug in (
    *("set_version", "set_domain_public_auth", "remove_domain"),
    *("create_public_token", "revoke_namespace_token"),
):
    _refused(_slug)
