"""Tokens in the database: only hashes of random tokens, and nothing of signed tokens."""

from __future__ import annotations

import base64
import re
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select, update

from pyservice.storage.tables import games, idempotent_answers, metadata
from tests.control.service_fixtures import service_fixture
from tests.support.command_line import output
from tests.support.full_service import Developer, FullService, ServiceClient, eventually
from tests.support.namespace_scenario import Records

pytestmark = [pytest.mark.anyio, pytest.mark.full, pytest.mark.timeout(120)]

KINDS_OF_TOKENS = ("cloud", "dev", "env", "link", "lobby", "player", "pub")
TABLES = (
    *("cloud_tokens", "namespace_tokens", "idempotent_answers", "rays", "lobbies"),
    "device_links",
)
FORM = re.compile(rb"\b(?:" + "|".join(KINDS_OF_TOKENS).encode() + rb")_[A-Za-z0-9_-]{24,}")


# Every ray is stored, because a ray could contain a token.
full_service = service_fixture("function", rays={"per_second": 10_000})


class IssuedTokens:
    def __init__(self, client: ServiceClient, developer: Developer) -> None:
        self.client = client
        self.developer = developer
        self.tokens = [developer.token]

    async def make(self, slug: str, name: str = "token", **fields: Any) -> str:
        answer = await self.developer.good(slug, uuid4().hex, **fields)
        self.tokens.append(answer[name])
        return str(answer[name])

    async def send(self, slug: str, token: str, **fields: Any) -> Any:
        answer = await self.client.call(slug, fields, token=token, key=uuid4().hex)
        assert answer.code == "OK", (slug, answer)
        return answer.body


async def issue_all_tokens(full_service: FullService, issued: IssuedTokens) -> None:
    developer = issued.developer
    game_id = await developer.arena()
    target = {"game_id": game_id, "namespace_id": "prod"}
    service = await issued.make("create_service_token", game_id=game_id, environment_id="prod")
    public = await issued.make("create_public_token", **target)
    development = await issued.make("create_development_token", **target, hostname="127.0.0.1")
    await issued.make("create_game_token", game_id=game_id)
    for words in (("--kind", "public", "--namespace", f"{game_id}/prod"), ("--game", game_id)):
        issued.tokens.append(await output(full_service.data_dir, "token", "create", *words))

    link = await issued.make("prepare_device_link", "device_link_token")
    await developer.good("complete_device_link", device_link_token=link, game_id=game_id)
    linked = (await developer.good("get_device_link", device_link_token=link))["cloud_token"]
    issued.tokens.append(linked)
    assert (await issued.client.call("get_game", {"game_id": game_id}, token=linked)).code == "OK"

    lobby = await developer.lobby(game_id, service)
    issued.tokens.append(lobby["lobby_token"])
    for slug, token in (("find", public), ("join", public), ("find", development)):
        fields: dict[str, Any] = {"game_modes": ["arena"]}
        if slug == "join":
            fields = {"lobby_id": lobby["lobby_id"]}
        player = (await issued.send(slug, token, **fields))["player"]["token"]
        issued.tokens.append(player)
        speaker = development if token is development else lobby["lobby_token"]
        await issued.send("connected", speaker, player_token=player)
    for token in issued.tokens:
        await issued.client.call("get_game", {"game_id": token}, token=token)
    tokens = (await developer.good("list_namespace_tokens", **target))["tokens"]
    for one in tokens[:2]:
        await developer.good("revoke_namespace_token", **target, token_id=one["token_id"])


async def rows(records: Records) -> dict[str, list[tuple[Any, ...]]]:
    rows_of_tables: dict[str, list[tuple[Any, ...]]] = {}
    async with records.database.read() as tx:
        for table in metadata.sorted_tables:
            rows_of_tables[table.name] = [tuple(row) for row in await tx.all(select(table))]
    return rows_of_tables


def raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def secrets_of(token: str) -> list[bytes]:
    """Returns the forms in which a token could be stored: the text, the part after its kind, the decoded bytes."""
    secret = token.partition("_")[2]
    bare = base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
    return [token.encode(), secret.encode(), bare, bare.hex().encode()]


def traces(
    rows_of_tables: dict[str, list[tuple[Any, ...]]], tokens: list[str]
) -> list[tuple[str, int, bytes]]:
    """Returns each table and column that contains a part of a token."""
    secrets = [secret for token in tokens for secret in secrets_of(token)]
    return [
        (name, number, trace)
        for name, several in rows_of_tables.items()
        for row in several
        for number, value in enumerate(row)
        for trace in (
            *FORM.findall(raw(value)),
            *(secret for secret in secrets if secret in raw(value)),
        )
    ]


async def test_no_column_has_a_token(full_service: FullService, records: Records) -> None:
    tokens = []
    for transport in ("http", "grpc"):
        async with full_service.open_client(transport) as client:
            issued = IssuedTokens(client, Developer(full_service, client))
            await issue_all_tokens(full_service, issued)
        tokens += issued.tokens
        assert {token.partition("_")[0] for token in issued.tokens} == set(KINDS_OF_TOKENS)

    async def are_all_stored() -> bool:
        rows_of_tables = await rows(records)
        return all(rows_of_tables[one] for one in TABLES)

    await eventually(are_all_stored)
    assert traces(await rows(records), tokens) == []
    if full_service.database_url is None:
        # Free pages of the database file and the write-ahead log can contain earlier rows.
        assert full_service.stop() == 0
        for path in (full_service.data_dir / "control").glob("records.db*"):
            assert traces({path.name: [(path.read_bytes(),)]}, tokens) == []

    # Proves that the search would find a token.
    token = tokens[-1]
    for table, column, value in (
        (games, "display_name", f"about {token}"),
        (idempotent_answers, "answer", secrets_of(token)[2]),
    ):
        async with records.database.write() as tx:
            await tx.run(update(table).values({column: value}))
        matches = traces(await rows(records), tokens)
        assert {one for one, _, _ in matches} >= {table.name}
