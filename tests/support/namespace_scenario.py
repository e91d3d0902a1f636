"""A game with a namespace, a lobby and one token of every kind, for tests of authorization.

Tokens that only the command line can create are written to the records with the service's own queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import httpx
from sqlalchemy import Select, Table, delete, insert, select, update

from pyservice.control.tokens import new_secret
from pyservice.ids import RecordIds
from pyservice.storage import groups, namespaces, token_lineage, tokens
from pyservice.storage.database import Database
from pyservice.storage.tables import groups as groups_table
from pyservice.storage.tables import lobbies, members, metadata
from pyservice.timestamps import now_ms
from tests.support.full_service import (
    ARENA_MODES,
    Developer,
    FullService,
    HttpClient,
    ServiceClient,
    eventually,
)
from tests.support.hosted_game import Hosted
from tests.support.waiting import PATIENCE_S

PAID_MS: Final = 1
PAID_TS: Final = "1970-01-01T00:00:00.001Z"
MOVING: Final = frozenset(
    {"audit_log", "rays", "service_state", "lobbies", "lobby_runs", "removals", "alembic_version"}
)
"""Tables that the service changes without a request, and the audit log, which each change extends."""
MOVING_COLUMNS: Final = {
    "servers": {*("start_ms", "destroy_ms", "is_placed", "exit_code", "failure", "failure_message")}
}

IDS: Final = RecordIds()


@dataclass(frozen=True, slots=True)
class Bearer:
    """Caller with a token. `kind` is "" for no token and "garbage" for a malformed one."""

    name: str
    kind: str
    token: str | None = None
    origin: str | None = None
    fault: str | None = None
    """Error code of operations that accept this kind of token but not this token."""
    width: str = ""
    """Scope of a cloud token: identity, group or game."""
    covers_group: bool = False
    covers_game: bool = False
    is_of_game: bool = False
    """True if the token belongs to a namespace of the game."""
    is_of_namespace: bool = False


class Records:
    def __init__(self, database: Database) -> None:
        self.database = database

    async def identity(self, *group_names: str) -> tuple[str, list[str]]:
        identity_id, group_ids = IDS.new(), []
        async with self.database.write() as tx:
            await groups.add_identity(tx, identity_id, "Somebody", now_ms())
            for name in group_names:
                group_ids.append(IDS.new())
                await groups.add(tx, group_ids[-1], name, identity_id, now_ms())
        return identity_id, group_ids

    async def cloud_token(
        self,
        identity_id: str,
        group_id: str | None = None,
        game_id: str | None = None,
        *,
        expires_ms: int | None = None,
        is_revoked: bool = False,
    ) -> tuple[str, str]:
        secret, token_id = new_secret("cloud"), IDS.new()
        async with self.database.write() as tx:
            new = tokens.NewCloudToken(
                token_id, secret.sha256, now_ms(), identity_id, group_id, game_id, expires_ms
            )
            await tokens.add_cloud(tx, new)
            if is_revoked:
                await token_lineage.revoke_with_descendants(tx, token_id, now_ms())
        return secret.token, token_id

    async def service_token(self, namespace_id: str, expires_ms: int) -> str:
        secret = new_secret("env")
        async with self.database.write() as tx:
            await tokens.add_of_namespace(
                tx,
                IDS.new(),
                namespace_id,
                "env",
                now_ms(),
                sha256=secret.sha256,
                expires_ms=expires_ms,
            )
        return secret.token

    async def leave(self, identity_id: str, group_id: str) -> None:
        async with self.database.write() as tx:
            is_it = (members.c.identity_id == identity_id) & (members.c.group_id == group_id)
            await tx.run(delete(members).where(is_it))

    async def past_lobby(self, namespace_id: str, version_id: str) -> str:
        values = {
            "lobby_id": str(uuid4()),
            "namespace_id": namespace_id,
            "version_id": version_id,
            "game_mode": "arena",
            "region_id": "local",
            "publicity": "public",
            "is_closed": False,
            "is_stopping": False,
            "create_ms": now_ms(),
            "stop_ms": now_ms(),
            "stop_reason": "removed",
        }
        async with self.database.write() as tx:
            await tx.run(insert(lobbies), values)
        return str(values["lobby_id"])

    async def site_user(self, namespace_id: str, user: str) -> None:
        async with self.database.write() as tx:
            await namespaces.add_user(tx, namespace_id, user, "")

    async def pay(self, group_id: str) -> None:
        payment = update(groups_table).values(payment_failed_ms=PAID_MS)
        async with self.database.write() as tx:
            await tx.run(payment.where(groups_table.c.group_id == group_id))

    async def tables(self) -> dict[str, int]:
        """Returns one hash for each table. The hash changes when a row changes."""
        hashes = {}
        async with self.database.read() as tx:
            for table in metadata.sorted_tables:
                if table.name not in MOVING:
                    rows = await tx.all(still(table))
                    hashes[table.name] = hash(frozenset(tuple(row) for row in rows))
        return hashes


def still(table: Table) -> Select[Any]:
    """Selects the columns of a table that change only by requests."""
    moving = MOVING_COLUMNS.get(table.name, ())
    return select(*(column for column in table.columns if column.name not in moving))


class NamespaceScenario:
    """Game with a namespace, a lobby, and callers with every kind of token."""

    def __init__(self, full_service: FullService, records: Records, client: ServiceClient) -> None:
        self.full_service = full_service
        self.records = records
        self.client = client
        self._scraper = httpx.AsyncClient(verify=False, timeout=PATIENCE_S)
        self.domain = f"{uuid4().hex}.example"
        self._hosted: dict[str, Hosted] = {}
        self.starting: Any = None
        self.lobby_state = ""

    async def build(self) -> NamespaceScenario:
        records, client = self.records, self.client
        self.identity_id, (self.group_id, other_group_id) = await records.identity("Ours", "Second")
        other_identity_id, (other_identity_group_id,) = await records.identity("Theirs")
        await records.pay(self.group_id)
        token, self.token_id = await records.cloud_token(self.identity_id)
        self.owner = Developer(self.full_service, client, token)
        self.other_identity = Developer(
            self.full_service, client, (await records.cloud_token(other_identity_id))[0]
        )
        self.game_id = await self._arena(self.owner, self.group_id)
        self.other_game_id = await self._arena(self.owner, self.group_id)
        self.other_identity_game_id = await self._arena(
            self.other_identity, other_identity_group_id, "theirs"
        )
        game = await self.owner.good("get_game", game_id=self.game_id)
        self.game_name = game["game"]["name_id"]
        self.namespace_id, self.sibling_id = (
            one["namespace_id"] for one in game["game"]["namespaces"]
        )
        self.version_id = game["game"]["versions"][0]["version_id"]
        self.past_lobby_id = await records.past_lobby(self.namespace_id, self.version_id)
        await self._files()
        self.hosted = self._hosted[self.game_id]
        await self.hosted.begin()
        self.ray_id = await self._ray()
        self.bearers = [
            *_without_valid_token(),
            *await self._clouds(other_group_id, other_identity_id, other_identity_group_id),
            *await self._of_namespaces(),
        ]
        return self

    async def _files(self) -> None:
        file: dict[str, Any] = {"path": "a.png", "content_length": 1}
        of_game: dict[str, Any] = {"game_id": self.game_id}
        of_build = {**of_game, "display_name": "x", "image_file": file}
        self.build_id = (await self.owner.good("create_game_build", **of_build))["build_id"]
        of_site = {**of_game, "display_name": "x", "files": [file]}
        self.site_id = (await self.owner.good("create_site", **of_site))["site_id"]
        self.avatar_id = (await self.owner.good("prepare_avatar", **of_game, **file))["upload_id"]

    async def starts(self) -> None:
        fields = {
            "game_id": self.game_id,
            "namespace_id": "prod",
            "game_mode": "arena",
            "ports": {"game": {"address": "127.0.0.1", "port": 4000}},
        }
        attached = await self.client.call("attach", fields, token=self.service_token)
        assert attached.code == "OK", attached
        self.starting = attached.body

    async def _ray(self) -> str:
        ray_id = uuid4().hex
        client = HttpClient(self.full_service.ready["http"])
        traceparent = f"00-{ray_id}-{ray_id[:16]}-01"
        path = f"/cloud/games/{self.game_id}"
        answer = await client.request(
            "GET", path, token=self.owner.token, headers={"traceparent": traceparent}
        )
        assert answer.status_code == 200, answer.text
        await client.close()

        async def is_stored() -> bool:
            response = await self.owner.good("get_ray_perf", ray_id=ray_id)
            return len(response["perf_lists"]) > 0

        await eventually(is_stored)
        return ray_id

    async def close(self) -> None:
        await self._scraper.aclose()

    async def _arena(self, developer: Developer, group_id: str, name: str = "arena") -> str:
        """Creates a game with lobbies that need no heartbeat. A heartbeat frees slots at once."""
        game_id = await developer.game(developer_group_id=group_id)
        mode = {
            **ARENA_MODES["arena"],
            "max_players": 256,
            "heartbeat_grace_ms": 0,
            "heartbeat_timeout": 3_600_000,
            "player_token_ttl": 3_600_000,
        }
        modes = {name: mode}
        if name == "arena":
            hosted = Hosted(developer, game_id)
            await hosted.upload()
            modes["hosted"] = hosted.mode()
            self._hosted[game_id] = hosted
        config = {"matchmaker": {"game_modes": modes}}
        version_id = await developer.version(game_id, config)
        fields = {"game_id": game_id, "namespace_id": "prod"}
        await developer.good("set_version", **fields, version_id=version_id)
        await developer.good(
            "set_mm_config", **fields, lobby_count_max=10_000, max_players=1_000_000
        )
        return game_id

    async def _clouds(
        self, other_group_id: str, other_identity_id: str, other_identity_group_id: str
    ) -> list[Bearer]:
        make, identity_id = self.records.cloud_token, self.identity_id
        revoked, _ = await make(identity_id, is_revoked=True)
        expired, _ = await make(identity_id, expires_ms=now_ms() - 1)
        leaver_id, (left_id,) = await self.records.identity("Left")
        former_member, _ = await make(leaver_id, left_id)
        await self.records.leave(leaver_id, left_id)

        async def cloud(name: str, width: str, *scope: str | None, **covers: Any) -> Bearer:
            token, _ = await make(*scope)  # type: ignore[arg-type]
            return Bearer(name, "cloud", token, width=width, **covers)

        def ended(name: str, token: str, fault: str) -> Bearer:
            return Bearer(f"cloud {name}", "cloud", token, fault=fault)

        both: dict[str, Any] = {"covers_group": True, "covers_game": True}
        other_ids = (other_identity_id, other_identity_group_id)
        mine, game = (identity_id, self.group_id), {"covers_game": True}
        return [
            Bearer("cloud of the identity", "cloud", self.owner.token, width="identity", **both),
            await cloud("cloud of the group", "group", *mine, **both),
            await cloud("cloud of the game", "game", *mine, self.game_id, **game),
            await cloud("cloud of another game", "game", *mine, self.other_game_id),
            await cloud("cloud of another group", "group", identity_id, other_group_id),
            await cloud("cloud of another identity", "identity", other_identity_id),
            await cloud("cloud of another identity's group", "group", *other_ids),
            await cloud(
                "cloud of another identity's game", "game", *other_ids, self.other_identity_game_id
            ),
            ended("revoked", revoked, "TOKEN_REVOKED"),
            ended("expired", expired, "TOKEN_EXPIRED"),
            ended("of a former member", former_member, "TOKEN_REVOKED"),
            ended("forged", new_secret("cloud").token, "TOKEN_INVALID"),
        ]

    async def _of_namespaces(self) -> list[Bearer]:
        owner, game_id = self.owner, self.game_id
        target = {"game_id": game_id, "namespace_id": "prod"}
        expired = await self.records.service_token(self.namespace_id, now_ms() - 1)
        self.service_token = await owner.service_token(game_id)
        self.public_token = await owner.public_token(game_id)
        self.lobby = await owner.lobby(game_id, self.service_token)
        dev = (await owner.good("create_development_token", **target))["token"]
        revoked = await owner.good("create_public_token", **target)
        await owner.good("revoke_namespace_token", **target, token_id=revoked["token_id"])
        ended = await owner.good("create_development_token", **target)
        await owner.good("revoke_namespace_token", **target, token_id=ended["token_id"])
        await owner.good("add_domain", **target, domain=self.domain)
        elsewhere = await self.other_identity.service_token(self.other_identity_game_id)
        lobby_elsewhere = await self.other_identity.lobby(
            self.other_identity_game_id, elsewhere, "theirs"
        )
        scope: dict[str, Any] = {"is_of_game": True, "is_of_namespace": True}
        env_of_sibling = await owner.service_token(game_id, "staging")
        pub_of_sibling = await owner.public_token(game_id, "staging")
        lobby_token = self.lobby["lobby_token"]

        def faulty(name: str, kind: str, token: str, fault: str) -> Bearer:
            return Bearer(name, kind, token, fault=fault)

        return [
            Bearer("env", "env", self.service_token, **scope),
            Bearer("env of a sibling", "env", env_of_sibling, is_of_game=True),
            Bearer("env of another identity", "env", elsewhere),
            faulty("env expired", "env", expired, "TOKEN_EXPIRED"),
            faulty("env forged", "env", new_secret("env").token, "TOKEN_INVALID"),
            Bearer("pub", "pub", self.public_token, **scope),
            Bearer("pub of a sibling", "pub", pub_of_sibling, is_of_game=True),
            faulty("pub revoked", "pub", revoked["token"], "TOKEN_REVOKED"),
            faulty("pub tampered", "pub", _tampered(self.public_token), "TOKEN_INVALID"),
            Bearer("dev", "dev", dev, **scope),
            faulty("dev revoked", "dev", ended["token"], "TOKEN_REVOKED"),
            Bearer("lobby", "lobby", lobby_token, **scope),
            Bearer("lobby of another identity", "lobby", lobby_elsewhere["lobby_token"]),
            faulty("lobby tampered", "lobby", _tampered(lobby_token), "TOKEN_INVALID"),
            Bearer("player", "player", await self.player_token()),
            Bearer("link", "link", "link_AAAAAAAAAAAAAAAAAAAAAA"),
            Bearer("channel", "channel", await self._channel()),
            Bearer("a page of the namespace", "", origin=f"https://{self.domain}", **scope),
            Bearer("an unknown page", "", origin="https://nobody.example"),
        ]

    async def _channel(self) -> str:
        secret = uuid4().hex
        fields = {"lobby_id": self.lobby["lobby_id"], "party_size": 2, "event_channels": [secret]}
        join_response = await self.client.call("join", fields, token=self.public_token)
        assert join_response.code == "OK", join_response
        return secret

    async def player_token(self) -> str:
        fields = {"lobby_id": self.lobby["lobby_id"]}
        join_response = await self.client.call("join", fields, token=self.service_token)
        assert join_response.code == "OK", join_response
        return str(join_response.body["player"]["token"])

    async def engine(self) -> Any:
        response = await self.client.call("list", {"include_state": True}, token=self.service_token)
        assert response.code == "OK", response
        scrape = await self._scraper.get(f"http://{self.full_service.ready['metrics']}/metrics")
        names = ("hosting_lobbies{", "hosting_slots{")
        label = f'namespace="{self.game_name}/prod"'
        lines = [line for line in scrape.text.splitlines() if line.startswith(names)]
        return (
            sorted(str(one) for one in response.body["lobbies"]),
            [line for line in lines if label in line],
        )


def _without_valid_token() -> list[Bearer]:
    return [Bearer("no token", ""), Bearer("garbage", "garbage", "cloud-nonsense")]


def _tampered(token: str) -> str:
    middle = len(token) // 2
    return token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]
