"""Placeholders and error cases for games, groups, namespaces, versions and tokens."""

from __future__ import annotations

from typing import Any

import httpx

from tests.contract.error_cases import error_case
from tests.contract.scenario import Scenario, before, placeholder

_PORTS = {"game": {"protocol": "tcp"}}


@placeholder("group_id")
def _(scenario: Scenario) -> str:
    return scenario.served_game.group_id


@placeholder("version_id")
def _(scenario: Scenario) -> str:
    return scenario.served_game.version_id


@placeholder("unused_version_id")
def _(scenario: Scenario) -> str:
    return str(scenario.good("create_version")["version_id"])


@error_case("delete_version", "IN_USE")
def _(scenario: Scenario) -> httpx.Response:
    return scenario.call("delete_version", path={"version_id": scenario.served_game.version_id})


@placeholder("unused_namespace")
def _(scenario: Scenario) -> str:
    name = f"old-{scenario.name}"
    fields = {"name_id": name, "version_id": scenario.served_game.version_id}
    scenario.good("create_namespace", fields=fields)
    # The response means that the data plane has the namespace.
    scenario.good("set_mm_config", path={"namespace_id": name})
    return name


@placeholder("unused_game")
def _(scenario: Scenario) -> str:
    name = f"old-{scenario.name}"
    fields = {"developer_group_id": scenario.served_game.group_id, "name_id": name}
    scenario.good("create_game", fields=fields)
    scenario.good("set_mm_config", path={"game_id": name, "namespace_id": "prod"})
    return name


def _live_lobby(scenario: Scenario, game: str, namespace: str) -> None:
    path = {"game_id": game, "namespace_id": namespace}
    fields = {"game_mode": "duel", "tags": None, "region": None}
    scenario.good("attach", token="cloud", path=path, fields=fields)


@error_case("delete_namespace", "IN_USE")
def _(scenario: Scenario) -> httpx.Response:
    name = scenario.value("unused_namespace")
    _live_lobby(scenario, scenario.value("game_id"), name)
    return scenario.call("delete_namespace")


@error_case("delete_game", "IN_USE")
def _(scenario: Scenario) -> httpx.Response:
    game = {"game_id": scenario.value("unused_game")}
    config = {"matchmaker": {"game_modes": {"duel": {"docker": {"ports": _PORTS}}}}}
    version = scenario.good("create_version", path=game, fields={"config": config})
    target = {**game, "namespace_id": "prod"}
    scenario.good("set_version", path=target, fields={"version_id": version["version_id"]})
    _live_lobby(scenario, game["game_id"], "prod")
    return scenario.call("delete_game")


@placeholder("new_name_id")
def _(scenario: Scenario) -> str:
    return f"n{scenario.name}"


@placeholder("domain")
def _(scenario: Scenario) -> str:
    return f"{scenario.name}.example.com"


@placeholder("user")
def _(scenario: Scenario) -> str:
    return f"user-{scenario.name}"


def public_token(scenario: Scenario) -> Any:
    return scenario.once("public token", lambda: scenario.good("create_public_token"))


def service_token(scenario: Scenario) -> Any:
    return scenario.once("service token", lambda: scenario.good("create_service_token"))


def game_token(scenario: Scenario) -> Any:
    return scenario.once("game token", lambda: scenario.good("create_game_token"))


@placeholder("token_id")
def _(scenario: Scenario) -> str:
    return str(public_token(scenario)["token_id"])


@placeholder("cloud_token_id")
def _(scenario: Scenario) -> str:
    return str(game_token(scenario)["token_id"])


@before("remove_domain")
def _(scenario: Scenario) -> Any:
    return scenario.good("add_domain")


@before("remove_auth_user")
def _(scenario: Scenario) -> Any:
    return scenario.good("set_auth_user")


def _wider_than_a_game(slug: str) -> None:
    @error_case(slug, "FORBIDDEN")
    def _(scenario: Scenario) -> httpx.Response:
        return scenario.call(slug, bearer=game_token(scenario)["token"])


for _slug in (
    *("create_game", "delete_game", "create_group", "get_group", "get_billing", "get_quotas"),
    "get_audit",
    *("list_group_tokens", "revoke_group_token"),
):
    _wider_than_a_game(_slug)


def _invalid(slug: str, **fields: Any) -> None:
    @error_case(slug, "VALIDATION_FAILED")
    def _(scenario: Scenario) -> httpx.Response:
        return scenario.call(slug, fields=fields)


_invalid("create_game", display_name=" two  spaces")
_invalid("create_group", display_name="")
_invalid("create_namespace", name_id="not--a-name")
_invalid("create_version", display_name="")
_invalid("add_domain", domain="not a domain")
_invalid("set_auth_user", user="a:b")
_invalid("set_mm_config", lobby_count_max=0)
_invalid("patch_mm_config", lobby_count_max=0)
_invalid("create_development_token", ports={"game": {"port": 7777, "protocol": "smoke"}})
