"""The control plane's nouns: games, groups, namespaces, versions, tokens."""

from __future__ import annotations

from typing import Any

import httpx

from tests.contract.provocations import provokes
from tests.contract.scene import Scene, before, place

# What scenes need ---------------------------------------------------------------------------------


@place("group_id")
def _(scene: Scene) -> str:
    return scene.world.group_id


@place("version_id")
def _(scene: Scene) -> str:
    return scene.world.version_id


@place("new_name_id")
def _(scene: Scene) -> str:
    return f"n{scene.name}"


@place("domain")
def _(scene: Scene) -> str:
    return f"{scene.name}.example.com"


@place("user")
def _(scene: Scene) -> str:
    return f"user-{scene.name}"


def public_token(scene: Scene) -> Any:
    return scene.once("public token", lambda: scene.good("create_public_token"))


def service_token(scene: Scene) -> Any:
    return scene.once("service token", lambda: scene.good("create_service_token"))


def game_token(scene: Scene) -> Any:
    return scene.once("game token", lambda: scene.good("create_game_token"))


@place("token_id")
def _(scene: Scene) -> str:
    return str(public_token(scene)["token_id"])


@place("cloud_token_id")
def _(scene: Scene) -> str:
    return str(game_token(scene)["token_id"])


@before("remove_domain")
def _(scene: Scene) -> Any:
    return scene.good("add_domain")


@before("remove_auth_user")
def _(scene: Scene) -> Any:
    return scene.good("set_auth_user")


# What a token of one game may not do ---------------------------------------------------------------


def _wider_than_a_game(slug: str) -> None:
    @provokes(slug, "FORBIDDEN")
    def _(scene: Scene) -> httpx.Response:
        return scene.call(slug, bearer=game_token(scene)["token"])


for _slug in (
    *("create_game", "create_group", "get_group", "get_billing"),
    *("list_group_tokens", "revoke_group_token"),
):
    _wider_than_a_game(_slug)


# What breaks a rule -------------------------------------------------------------------------------


def _invalid(slug: str, **fields: Any) -> None:
    @provokes(slug, "VALIDATION_FAILED")
    def _(scene: Scene) -> httpx.Response:
        return scene.call(slug, fields=fields)


_invalid("create_game", display_name=" two  spaces")
_invalid("create_group", display_name="")
_invalid("create_namespace", name_id="not--a-name")
_invalid("create_version", display_name="")
_invalid("add_domain", domain="not a domain")
_invalid("set_auth_user", user="a:b")
_invalid("set_mm_config", lobby_count_max=0)
_invalid("create_development_token", ports={"game": {"port": 7777, "protocol": "smoke"}})
