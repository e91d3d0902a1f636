"""Quotas of live lobbies, dynamic servers and running versions of a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest

from pyservice.schema.configuration_size import NAMESPACE_BYTES, SERVICE_TOKEN_BYTES
from pyservice.settings import load
from tests.control.new_developers import new_developer
from tests.control.service_fixtures import service_fixture
from tests.support import game_programs
from tests.support.command_line import output
from tests.support.full_service import ARENA_MODES, Developer, ServiceResponse, eventually
from tests.support.hosted_game import Hosted
from tests.support.namespace_scenario import Records
from tests.support.server_back_end import process_of

pytestmark = [pytest.mark.anyio, pytest.mark.full]

CALLERS = 6
LIMITS = {
    "lobbies": 3,
    "servers": 2,
    "server_cpu_millicores": 1_000,
    "server_memory_mb": 1_000,
}
TIER = next(tier for tier in load({}).tiers if tier.tier_name_id == "basic-1d16")
"""Tier of the modes of `Hosted`."""

full_service = service_fixture("module", runtime=game_programs.SETTINGS, quotas=LIMITS)


class QuotaGame:
    """Game of a new group. Its namespaces `prod` and `staging` run modes with and without a build."""

    def __init__(self, developer: Developer, group_id: str) -> None:
        self.developer = developer
        self.group_id = group_id

    async def set_up(self) -> None:
        developer = self.developer
        self.game_id = await developer.game(developer_group_id=self.group_id)
        self.hosted = Hosted(developer, self.game_id)
        await self.hosted.upload()
        idle = {"idle_lobbies": {"min": CALLERS, "max": CALLERS}}
        self.modes = {**ARENA_MODES, "hosted": self.hosted.mode(), "other": self.hosted.mode()}
        self.idle_modes = {"idle": {**self.hosted.mode(), **idle}}
        await self.run_modes(self.modes)
        self.token = await developer.public_token(self.game_id)

    async def run_modes(self, modes: dict[str, Any]) -> None:
        config = {"matchmaker": {"game_modes": modes}}
        version_id = await self.developer.version(self.game_id, config)
        for name in ("prod", "staging"):
            target = {"game_id": self.game_id, "namespace_id": name, "version_id": version_id}
            await self.developer.good("set_version", **target)

    async def attach(self, namespace_id: str = "prod", key: str | None = None) -> ServiceResponse:
        return await self.developer.call(
            "attach",
            key,
            game_id=self.game_id,
            namespace_id=namespace_id,
            game_mode="arena",
            ports={"game": {"address": "127.0.0.1", "port": 4000}},
        )

    async def play(self, slug: str, **fields: Any) -> ServiceResponse:
        return await self.developer.client.call(slug, fields, token=self.token)

    async def set_quotas(self, *limits: str) -> None:
        words = ("quota", "set", *limits, "--group", self.group_id)
        await output(self.developer.full_service.data_dir, *words)

    async def reset_quotas(self) -> None:
        words = ("quota", "reset", "--group", self.group_id)
        await output(self.developer.full_service.data_dir, *words)

    async def refusal_of_a_lobby(self, quota: str, limit: int) -> ServiceResponse:
        """Creates lobbies until one is refused by this limit, which reaches the data plane later."""
        expected = {"quota": quota, "limit": str(limit)}

        async def refusal() -> ServiceResponse | None:
            answer = await self.play("create", game_mode="hosted")
            return answer if expected.items() <= answer.metadata.items() else None

        refused: ServiceResponse = await eventually(refusal)
        return refused

    async def processes(
        self, lobby_ids: Sequence[str], server_ids: Sequence[str]
    ) -> dict[str, int] | None:
        """Returns the PID of each lobby and server, or None if one of them does not run."""
        of_lobby = {"game_id": self.game_id, "namespace_id": "prod"}
        of_server = {"game_id": self.game_id, "environment_id": "prod"}
        get = self.developer.good
        lobbies = [await get("get_lobby_record", **of_lobby, lobby_id=one) for one in lobby_ids]
        servers = [await get("get_server", **of_server, server_id=one) for one in server_ids]
        states = {answer["lobby"]["state"] for answer in lobbies}
        states |= {answer["server"]["status"] for answer in servers}
        if states != {"running"}:
            return None
        full_service = self.developer.full_service
        return {run_id: process_of(full_service, run_id) for run_id in (*lobby_ids, *server_ids)}

    async def use_of(self, name: str) -> int:
        rows = (await self.developer.good("get_quotas", group_id=self.group_id))["quotas"]
        return int(next(row["use"] for row in rows if row["quota"] == name))


@pytest.fixture
async def game(developer: Developer, records: Records) -> AsyncIterator[QuotaGame]:
    game = QuotaGame(*await new_developer(developer, records))
    await game.set_up()
    yield game
    await game.reset_quotas()
    await game.run_modes({})


def codes(answers: list[ServiceResponse]) -> list[str]:
    return sorted(answer.code for answer in answers)


async def test_lobbies_of_all_namespaces_count_exactly(game: QuotaGame) -> None:
    first = await game.attach("staging", "first")
    assert first.code == "OK"
    answers = await asyncio.gather(*(game.attach() for _ in range(CALLERS)))
    assert codes(answers) == ["OK"] * 2 + ["QUOTA_EXCEEDED"] * (CALLERS - 2)
    expected = {"quota": "lobbies", "scope": "group", "limit": "3", "use": "3"}
    assert next(one.metadata for one in answers if one.code != "OK") == expected
    for slug, fields in (("create", {"game_mode": "hosted"}), ("find", {"game_modes": ["hosted"]})):
        assert (await game.play(slug, **fields)).code == "QUOTA_EXCEEDED"

    async def is_counted() -> bool:
        return await game.use_of("lobbies") == LIMITS["lobbies"]

    await eventually(is_counted)
    again = await game.attach("staging", "first")
    assert again.body == first.body
    lobby_id = first.body["lobby_id"]
    await game.developer.good("detach", game_id=game.game_id, lobby_id=lobby_id)
    assert (await game.attach()).code == "OK"


async def test_find_at_the_quota_returns_a_lobby_with_room(game: QuotaGame) -> None:
    first = await game.play("find", game_modes=["hosted"])
    assert first.code == "OK", first
    assert codes(await asyncio.gather(*(game.attach() for _ in range(3)))) == [
        *["OK"] * 2,
        "QUOTA_EXCEEDED",
    ]
    again = await game.play("find", game_modes=["hosted"])
    assert again.body["lobby"]["lobby_id"] == first.body["lobby"]["lobby_id"]
    assert (await game.play("find", game_modes=["other"])).code == "QUOTA_EXCEEDED"
    prevented = await game.play("find", game_modes=["other"], prevent_auto_create_lobby=True)
    assert prevented.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    await game.set_quotas("lobbies=4")

    async def has_room() -> bool:
        return (await game.attach()).code == "OK"

    await eventually(has_room)
    assert (await game.attach()).metadata["limit"] == "4"


@pytest.mark.parametrize(
    ("quota", "amount"),
    [("lobby_cpu_millicores", TIER.millicores), ("lobby_memory_mb", TIER.memory)],
)
async def test_resources_of_lobbies_count_exactly(game: QuotaGame, quota: str, amount: int) -> None:
    # An attached lobby needs no resources, so it shows when a limit has reached the data plane.
    await game.set_quotas("lobbies=0", f"{quota}={2 * amount + amount // 2}")

    async def is_refused() -> bool:
        return (await game.attach()).metadata.get("limit") == "0"

    await eventually(is_refused)
    await game.set_quotas("lobbies=1000")

    async def has_room() -> bool:
        return (await game.attach()).code == "OK"

    await eventually(has_room)
    creates = [game.play("create", game_mode="hosted") for _ in range(CALLERS)]
    answers = await asyncio.gather(*creates)
    assert codes(answers) == ["OK"] * 2 + ["QUOTA_EXCEEDED"] * (CALLERS - 2)
    assert (await game.play("find", game_modes=["other"])).code == "QUOTA_EXCEEDED"

    async def is_counted() -> bool:
        return await game.use_of(quota) == 2 * amount

    await eventually(is_counted)


async def test_idle_lobbies_stop_at_the_quota(game: QuotaGame) -> None:
    await game.run_modes(game.idle_modes)

    async def is_full() -> bool:
        answer = await game.play("create", game_mode="idle")
        return answer.code == "QUOTA_EXCEEDED" and await game.use_of("lobbies") == 3

    await eventually(is_full)
    await asyncio.sleep(1.5)  # The scaler retries each second.
    assert await game.use_of("lobbies") == LIMITS["lobbies"]


@pytest.mark.parametrize(
    ("quota", "resources", "admitted"),
    [
        ("servers", {"cpu": 10, "memory": 64}, 2),
        ("server_cpu_millicores", {"cpu": 600, "memory": 64}, 1),
        ("server_memory_mb", {"cpu": 10, "memory": 600}, 1),
    ],
)
async def test_servers_count_exactly(
    game: QuotaGame, quota: str, resources: dict[str, int], admitted: int
) -> None:
    fields = {**game.hosted.server_fields(), "resources": resources}
    calls = [game.developer.call("create_server", **fields) for _ in range(CALLERS)]
    answers = await asyncio.gather(*calls)
    assert codes(answers) == ["OK"] * admitted + ["QUOTA_EXCEEDED"] * (CALLERS - admitted)
    assert {one.metadata["quota"] for one in answers if one.code != "OK"} == {quota}
    used = {"servers": 1, "server_cpu_millicores": resources["cpu"]}
    used["server_memory_mb"] = resources["memory"]
    for name, amount in used.items():
        assert await game.use_of(name) == admitted * amount
    for server_id in [one.body["server"]["id"] for one in answers if one.code == "OK"]:
        target = {"game_id": game.game_id, "environment_id": "prod", "server_id": server_id}
        await game.developer.good("destroy_server", **target, override_kill_timeout=0)

    async def is_free() -> bool:
        return await game.use_of(quota) == 0

    await eventually(is_free)


async def test_limit_below_the_use_ends_nothing_and_refuses_the_next_start(
    game: QuotaGame,
) -> None:
    creates = [game.play("create", game_mode="hosted") for _ in range(LIMITS["lobbies"])]
    created = await asyncio.gather(*creates)
    assert codes(created) == ["OK"] * LIMITS["lobbies"]
    lobby_ids = [answer.body["lobby"]["lobby_id"] for answer in created]
    server_ids = [await game.hosted.server() for _ in range(LIMITS["servers"])]

    async def running() -> dict[str, int] | None:
        return await game.processes(lobby_ids, server_ids)

    processes = await eventually(running)
    server_fields = game.hosted.server_fields()
    of_server = server_fields["resources"]
    uses_of_servers = {
        "servers": len(server_ids),
        "server_cpu_millicores": len(server_ids) * of_server["cpu"],
        "server_memory_mb": len(server_ids) * of_server["memory"],
    }
    uses_of_lobbies = {
        "lobbies": len(lobby_ids),
        "lobby_cpu_millicores": len(lobby_ids) * TIER.millicores,
        "lobby_memory_mb": len(lobby_ids) * TIER.memory,
    }
    for uses in (uses_of_servers, uses_of_lobbies):
        for quota, use in uses.items():
            # Only this quota refuses. One change sets all limits, so no lobby starts in between.
            limits = {name: 100 * amount for name, amount in uses.items()} | {quota: 1}
            await game.set_quotas(*(f"{name}={limit}" for name, limit in limits.items()))
            if uses is uses_of_servers:
                refused = await game.developer.call("create_server", **server_fields)
            else:
                refused = await game.refusal_of_a_lobby(quota, 1)
            assert refused.code == "QUOTA_EXCEEDED", refused
            expected = {"quota": quota, "scope": "group", "limit": "1", "use": str(use)}
            assert refused.metadata == expected
            assert await game.processes(lobby_ids, server_ids) == processes
            assert await game.use_of(quota) == use
    for server_id in server_ids:
        target = {"game_id": game.game_id, "environment_id": "prod", "server_id": server_id}
        await game.developer.good("destroy_server", **target, override_kill_timeout=0)


async def test_new_namespace_needs_memory_for_its_version(game: QuotaGame) -> None:
    running = (await game.developer.good("list_namespaces", game_id=game.game_id))["namespaces"]
    config = {"matchmaker": {"game_modes": {**game.modes, "third": game.hosted.mode()}}}
    other_id = await game.developer.version(game.game_id, config, name="3.0.0")

    def create(name_id: str, version_id: str, key: str | None = None) -> Awaitable[ServiceResponse]:
        fields = {"name_id": name_id, "display_name": name_id, "version_id": version_id}
        return game.developer.call("create_namespace", key, game_id=game.game_id, **fields)

    async def is_counted() -> bool:
        return await game.use_of("configuration_bytes") > 2 * NAMESPACE_BYTES

    await eventually(is_counted)
    use = await game.use_of("configuration_bytes")
    # There is room for a namespace with a running version, but not for another version.
    await game.set_quotas(f"configuration_bytes={use + 2 * NAMESPACE_BYTES}")
    running_id = running[0]["version_id"]

    async def is_refused() -> ServiceResponse | None:
        answer = await create("large", other_id)
        if answer.code != "OK":
            return answer
        await game.developer.good(
            "delete_namespace", game_id=game.game_id, namespace_id=answer.body["namespace_id"]
        )
        return None

    # A check that takes too long is skipped.
    answer = await eventually(is_refused)
    assert answer.code == "QUOTA_EXCEEDED"
    assert (answer.metadata["quota"], answer.metadata["scope"]) == ("configuration_bytes", "group")
    assert int(answer.metadata["limit"]) == use + 2 * NAMESPACE_BYTES
    assert int(answer.metadata["use"]) > 0
    created = await create("equal", running_id, "equal")
    assert created.code == "OK", created
    await game.set_quotas("configuration_bytes=1")
    assert (await create("equal", running_id, "equal")).body == created.body

    async def is_full() -> bool:
        return (await create("other", running_id)).code == "QUOTA_EXCEEDED"

    await eventually(is_full)
    developer = game.developer
    new_game = await developer.call(
        "create_game", developer_group_id=game.group_id, display_name="Full", name_id="full"
    )
    assert new_game.code == "QUOTA_EXCEEDED", new_game
    assert new_game.metadata["quota"] == "configuration_bytes"
    listed = (await game.developer.good("list_namespaces", game_id=game.game_id))["namespaces"]
    names = {namespace["name_id"] for namespace in (*running, {"name_id": "equal"})}
    assert {namespace["name_id"] for namespace in listed} == names
    await game.reset_quotas()


async def test_memory_of_running_versions_is_limited_for_each_group(game: QuotaGame) -> None:
    async def is_counted() -> bool:
        return await game.use_of("configuration_bytes") > 0

    await eventually(is_counted)
    await game.set_quotas("configuration_bytes=1")
    # Changes that add nothing need no room.
    namespace = {"game_id": game.game_id, "namespace_id": "prod"}
    await game.developer.good("set_domain_public_auth", **namespace, enabled=True)
    config = {"matchmaker": {"game_modes": {**game.modes, "third": game.hosted.mode()}}}
    version_id = await game.developer.version(game.game_id, config, name="2.0.0")
    target = {"game_id": game.game_id, "namespace_id": "prod", "version_id": version_id}

    async def refusal() -> ServiceResponse | None:
        answer = await game.developer.call("set_version", **target)
        return answer if answer.code == "QUOTA_EXCEEDED" else None

    metadata = (await eventually(refusal)).metadata
    assert (metadata["quota"], metadata["scope"]) == ("configuration_bytes", "group")
    assert (metadata["limit"], int(metadata["use"]) > 1) == ("1", True)
    await game.reset_quotas()

    async def is_accepted() -> bool:
        return (await game.developer.call("set_version", **target)).code == "OK"

    await eventually(is_accepted)


async def test_tokens_and_domains_need_memory_and_revocations_need_none(game: QuotaGame) -> None:
    async def is_counted() -> bool:
        return await game.use_of("configuration_bytes") > 0

    async def code_of(token: dict[str, str]) -> str:
        return (await game.developer.client.call("list", {}, token=token["token"])).code

    of_service = {"game_id": game.game_id, "environment_id": "prod"}
    namespace = {"game_id": game.game_id, "namespace_id": "prod"}
    ports = {f"port-{number}": {"protocol": "tcp", "port": 4_000} for number in range(16)}
    additions: dict[str, dict[str, Any]] = {
        "create_service_token": of_service,
        "create_public_token": namespace,
        "create_development_token": {**namespace, "ports": ports},
        "add_domain": {**namespace, "domain": "new.example"},
    }
    tokens = [
        await game.developer.good(slug, **fields)
        for slug, fields in additions.items()
        if slug != "add_domain"
    ]
    await game.developer.good("add_domain", **namespace, domain="old.example")
    await eventually(is_counted)
    await game.set_quotas("configuration_bytes=1")
    for slug, fields in additions.items():
        answer = await game.developer.call(slug, **fields)
        assert answer.code == "QUOTA_EXCEEDED"
        assert answer.metadata["quota"] == "configuration_bytes"
    kept = (await game.developer.good("list_namespace_tokens", **namespace))["tokens"]
    # The game itself has a token.
    assert len(kept) == 1 + len(tokens)
    for token in tokens:
        assert await code_of(token) == "OK"
        await game.developer.good("revoke_namespace_token", **namespace, token_id=token["token_id"])
        assert await code_of(token) == "TOKEN_REVOKED"
    await game.developer.good("remove_domain", **namespace, domain="old.example")


async def test_tokens_fill_the_memory_of_their_group(game: QuotaGame) -> None:
    of_service = {"game_id": game.game_id, "environment_id": "prod"}
    for name in ("prod", "staging"):
        # The second message drops the version that the namespace ran first.
        await game.developer.service_token(game.game_id, name)
    use = await game.use_of("configuration_bytes")
    limit = use + 3 * SERVICE_TOKEN_BYTES
    await game.set_quotas(f"configuration_bytes={limit}")
    answers = [await game.developer.call("create_service_token", **of_service) for _ in range(5)]
    assert [answer.code for answer in answers] == ["OK"] * 3 + ["QUOTA_EXCEEDED"] * 2

    async def is_full() -> bool:
        return await game.use_of("configuration_bytes") == limit

    await eventually(is_full)
