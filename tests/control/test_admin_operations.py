"""Commands `pyservice group`, `identity` and `token`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.control.new_developers import new_developer, unique
from tests.control.response_shapes import ID, NUMBER, TEXT, TIME, shape
from tests.support.command_line import error_output, json_output, output, run
from tests.support.full_service import Developer, eventually
from tests.support.namespace_scenario import Records
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


async def _person(owner: Developer) -> str:
    data_dir = owner.full_service.data_dir
    return await output(data_dir, "identity", "create", "--display-name", unique("Person"))


async def _group(owner: Developer, *words: str) -> str:
    data_dir = owner.full_service.data_dir
    return await output(data_dir, "group", "create", "--display-name", unique("Group"), *words)


def _with_token(owner: Developer, token: str) -> Developer:
    return Developer(owner.full_service, owner.client, token)


@pytest.mark.parametrize("words", ["identity list", "group list", "token create", "billing record"])
async def test_command_runs_as_a_process(owner: Developer, words: str) -> None:
    needs_group = ("--group", owner.full_service.group_id)
    more = {
        "token create": needs_group,
        "billing record": (*needs_group, "--payment-failed", "2030-01-31T12:00:00Z"),
    }
    result = await asyncio.to_thread(
        run, owner.full_service.data_dir, *words.split(), *more.get(words, ()), "--json"
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("{")


async def test_identity_is_created_and_listed_with_its_groups(owner: Developer) -> None:
    data_dir, name = owner.full_service.data_dir, unique("Person")
    created = await json_output(data_dir, "identity", "create", "--display-name", name)
    assert shape(created) == {"identity_id": ID}
    group_id = await _group(owner, "--owner", created["identity_id"])
    listed = await json_output(data_dir, "identity", "list")
    [mine] = [one for one in listed["identities"] if one["identity_id"] == created["identity_id"]]
    expected = {"identity_id": ID, "display_name": TEXT, "create_ms": NUMBER, "group_ids": [ID]}
    assert shape(mine) == {**expected, "disable_ms": None}
    assert (mine["display_name"], mine["group_ids"]) == (name, [group_id])
    lines = (await output(data_dir, "identity", "list")).splitlines()
    assert f"{created['identity_id']}\t{name}" in lines


async def test_group_owner_defaults_to_the_service_owner_and_stays_a_member(
    owner: Developer,
) -> None:
    data_dir = owner.full_service.data_dir
    owner_id = (await owner.good("inspect_token"))["identity_id"]
    group_id = await _group(owner)
    groups = (await json_output(data_dir, "group", "list"))["groups"]
    [mine] = [one for one in groups if one["group_id"] == group_id]
    assert (mine["owner_identity_id"], mine["member_ids"]) == (owner_id, [owner_id])
    lines = (await output(data_dir, "group", "list")).splitlines()
    assert f"{group_id}\t{mine['display_name']}" in lines
    member = ("--group", group_id, "--identity", owner_id)
    assert "IN_USE" in await error_output(data_dir, "group", "remove-member", *member)
    assert (await owner.good("get_group", group_id=group_id))["group"]["member_count"] == 1


async def test_group_profile_changes_are_returned(owner: Developer) -> None:
    data_dir, group_id = owner.full_service.data_dir, await _group(owner)
    before = (await owner.good("get_group", group_id=group_id))["group"]
    assert (before["bio"], before["publicity"]) == ("", "closed")
    update = ("group", "update", group_id)
    name, bio = unique("Renamed"), "Knights.\n\n\t\u00e9\nWe ride\nat dawn\n"
    for flag, value in (
        ("bio", bio),
        ("publicity", "open"),
        ("display_name", name),
        ("bio", ""),
        # The largest texts that are accepted.
        *(("bio", text) for text in ("\n" * 5, "a" * BIO_MAX, "a\n" * 5, "\u00e9" * BIO_MAX)),
    ):
        assert await output(data_dir, *update, f"--{flag.replace('_', '-')}", value) == ""
        before[flag] = value
        assert (await owner.good("get_group", group_id=group_id))["group"] == before
    assert await json_output(data_dir, *update, "--publicity", "closed", "--bio", bio) == {}
    groups = (await json_output(data_dir, "group", "list"))["groups"]
    [mine] = [one for one in groups if one["group_id"] == group_id]
    assert (mine["display_name"], mine["bio"], mine["publicity"]) == (name, bio, "closed")


async def test_game_list_watch_wakes_on_a_group_change(owner: Developer, records: Records) -> None:
    member, group_id = await new_developer(owner, records)
    other, other_id = await new_developer(owner, records)
    data_dir = owner.full_service.data_dir
    games = await member.good("get_games")
    for field, value in (("bio", "We ride"), ("publicity", "open"), ("display_name", "Riders")):
        words = (f"--{field.replace('_', '-')}", value)
        waiting_task = asyncio.create_task(
            member.good("get_games", watch_index=games["watch"]["index"])
        )
        unchanged = str(games["groups"][0]["publicity"])
        for unseen in ((other_id, *words), (group_id, "--publicity", unchanged)):
            await output(data_dir, "group", "update", *unseen)
        done, _ = await asyncio.wait({waiting_task}, timeout=0.25)
        assert not done
        await output(data_dir, "group", "update", group_id, *words)
        games = await asyncio.wait_for(waiting_task, PATIENCE_S)
        assert games["groups"][0][field] == value
    assert (await other.good("get_games"))["groups"][0]["display_name"] == "Riders"


BIO_MAX = 1_024
BAD_CHANGES = {
    "six lines": (("--bio", "a\n" * 6), "bio.too-long"),
    "six lines without the last end": (("--bio", "\n" * 5 + "a"), "bio.too-long"),
    "lines of nothing": (("--bio", "\n" * 6), "bio.too-long"),
    "too long a line": (("--bio", "a" * (BIO_MAX + 1)), "bio.too-long"),
    "a carriage return": (("--bio", "a\r\nb"), "bio.invalid"),
    "an escape": (("--bio", "a\x1b[31m"), "bio.invalid"),
    "another publicity": (("--publicity", "Open"), "publicity.not-allowed"),
    "no publicity": (("--publicity", ""), "publicity.not-allowed"),
    "no name": (("--display-name", ""), "display_name.too-short"),
    "spaces": (("--display-name", "a  b"), "display_name.invalid"),
}


async def test_invalid_group_change_changes_nothing(owner: Developer, records: Records) -> None:
    member, group_id = await new_developer(owner, records)
    update = (owner.full_service.data_dir, "group", "update", group_id)
    before = (await member.good("get_group", group_id=group_id))["group"]
    rest = {"--bio": "good", "--publicity": "open", "--display-name": "Good"}
    for words, problem in BAD_CHANGES.values():
        more = [word for pair in rest.items() if pair[0] != words[0] for word in pair]
        message = await error_output(*update, *words, *more)
        assert "VALIDATION_FAILED: " in message
        assert f"; {problem}\n" in message
        assert (await member.good("get_group", group_id=group_id))["group"] == before
    every = ("--bio", "a\r" * 600, "--publicity", "", "--display-name", "")
    message = await error_output(*update, *every)
    expected = "display_name.too-short bio.too-long bio.invalid publicity.not-allowed"
    assert all(f"; {problem}" in message for problem in expected.split())


async def test_membership_is_seen_at_once(owner: Developer) -> None:
    data_dir, person, group_id = (
        owner.full_service.data_dir,
        await _person(owner),
        await _group(owner),
    )
    token_holder = _with_token(
        owner, await output(data_dir, "token", "create", "--identity", person)
    )
    await token_holder.good("create_group", display_name=unique("Group"))

    async def seen_by(developer: Developer) -> list[tuple[bool, int]]:
        groups = (await developer.good("get_games"))["groups"]
        matching = [one for one in groups if one["group_id"] == group_id]
        answer = await developer.call("get_group", group_id=group_id)
        assert answer.code == ("OK" if matching else "GROUP_NOT_FOUND")
        if answer.code == "OK":
            matching.append(answer.body["group"])
        return [(one["is_current_identity_member"], one["member_count"]) for one in matching]

    assert (await seen_by(owner), await seen_by(token_holder)) == ([(True, 1)] * 2, [])
    member = ("--group", group_id, "--identity", person)
    for command, others, mine in (
        ("add-member", [(True, 2)] * 2, [(True, 2)] * 2),
        ("remove-member", [(True, 1)] * 2, []),
    ):
        index = (await token_holder.good("get_games"))["watch"]["index"]
        waiting_task = asyncio.create_task(token_holder.good("get_games", watch_index=index))
        # The second command changes nothing.
        for _ in range(2):
            assert await output(data_dir, "group", command, *member) == ""
        await asyncio.wait_for(waiting_task, PATIENCE_S)
        assert (await seen_by(owner), await seen_by(token_holder)) == (others, mine)


async def test_group_tokens_end_with_the_membership(developer: Developer) -> None:
    data_dir = developer.full_service.data_dir
    person, group_id = await _person(developer), await _group(developer)
    member = ("--group", group_id, "--identity", person)
    assert "FORBIDDEN" in await error_output(data_dir, "token", "create", *member)
    await output(data_dir, "group", "add-member", *member)
    created = await json_output(data_dir, "token", "create", *member)
    assert shape(created) == {"token": TEXT, "token_id": ID}
    token_holder = _with_token(developer, created["token"])
    game_id = await token_holder.game(developer_group_id=group_id)
    version_id = await token_holder.version(game_id)
    await token_holder.good(
        "set_version", game_id=game_id, namespace_id="prod", version_id=version_id
    )
    lobby = await token_holder.lobby(game_id, created["token"])
    await output(data_dir, "group", "remove-member", *member)
    assert await token_holder.code("get_group", group_id=group_id) == "TOKEN_REVOKED"

    # The data plane caches a valid token for less than a second.
    async def is_over() -> bool:
        fields = {"game_id": game_id, "lobby_id": lobby["lobby_id"]}
        return (await token_holder.call("detach", **fields)).code == "TOKEN_REVOKED"

    await eventually(is_over)


async def test_token_covers_the_requested_scope(owner: Developer) -> None:
    game_id, group_id = await owner.game(), owner.full_service.group_id
    name = (await owner.good("get_game", game_id=game_id))["game"]["name_id"]
    for words, scope in (
        (("--group", group_id), (group_id, None)),
        (("--game", game_id), (group_id, game_id)),
        (("--game", name), (group_id, game_id)),
    ):
        token = await output(owner.full_service.data_dir, "token", "create", *words)
        assert token.startswith("cloud_")
        token_info = await _with_token(owner, token).good("inspect_token")
        assert (token_info.get("group_id"), token_info.get("game_id")) == scope


async def test_namespace_tokens_work_are_listed_and_revoked(developer: Developer) -> None:
    data_dir, game_id = developer.full_service.data_dir, await developer.arena()
    game = (await developer.good("get_game", game_id=game_id))["game"]
    target = {"game_id": game_id, "namespace_id": "prod"}
    names = (f"{game['name_id']}/prod", game["namespaces"][0]["namespace_id"])
    for kind, prefix, name in (("public", "pub", names[0]), ("environment", "env", names[1])):
        words = ("token", "create", "--kind", kind, "--namespace", name)
        created = await json_output(data_dir, *words)
        assert created["token"].startswith(f"{prefix}_")
        assert (await developer.client.call("regions", {}, token=created["token"])).code == "OK"
        tokens = (await developer.good("list_namespace_tokens", **target))["tokens"]
        assert created["token_id"] in {one["token_id"] for one in tokens}
        await developer.good("revoke_namespace_token", **target, token_id=created["token_id"])
        answer = await developer.client.call("regions", {}, token=created["token"])
        assert answer.code in ("TOKEN_REVOKED", "TOKEN_INVALID")


async def _words_of_tokens(developer: Developer, game_id: str) -> list[tuple[str, ...]]:
    game = (await developer.good("get_game", game_id=game_id))["game"]
    identity_id = (await developer.good("inspect_token"))["identity_id"]
    return [
        ("--group", developer.full_service.group_id),
        ("--game", game_id),
        ("--identity", identity_id),
        ("--kind", "environment", "--namespace", f"{game['name_id']}/prod"),
    ]


async def test_time_to_live_is_returned_and_listed(owner: Developer) -> None:
    data_dir, game_id = owner.full_service.data_dir, await owner.arena()
    created: list[dict[str, str]] = []
    for words in await _words_of_tokens(owner, game_id):
        created += [await json_output(data_dir, "token", "create", *words, "--expires-in", "30d")]
        assert shape(created[-1]) == {"token": TEXT, "token_id": ID, "expires_ts": TIME}
        rest = datetime.fromisoformat(created[-1]["expires_ts"]) - datetime.now(UTC)
        assert timedelta(days=29, hours=23) < rest < timedelta(days=30)
    group = {"group_id": owner.full_service.group_id}
    target = {"game_id": game_id, "namespace_id": "prod"}
    listed = [
        *(await owner.good("list_group_tokens", **group))["tokens"],
        *(await owner.good("list_namespace_tokens", **target))["tokens"],
    ]
    expiries = {one["token_id"]: one.get("expires_ts", "") for one in listed}
    for one in created:
        assert expiries[one["token_id"]] == one["expires_ts"]
    for one in created[:3]:
        token_info = await _with_token(owner, one["token"]).good("inspect_token")
        assert token_info["expires_ts"] == one["expires_ts"]
    assert (await owner.client.call("list", {}, token=created[3]["token"])).code == "OK"


async def test_expired_token_is_refused_by_both_planes(developer: Developer) -> None:
    data_dir, game_id = developer.full_service.data_dir, await developer.arena()
    lobby = await developer.lobby(game_id, await developer.service_token(game_id))
    in_control = ("list_builds", {"game_id": game_id, "environment_id": "prod"})
    detach = ("detach", {"game_id": game_id, "lobby_id": lobby["lobby_id"]})
    *clouds, service = await _words_of_tokens(developer, game_id)
    expiring = []
    for words, calls in (
        *((words, (in_control, detach)) for words in clouds),
        (service, (in_control, ("list", {}))),
    ):
        token = await output(data_dir, "token", "create", *words, "--expires-in", "1s")
        expiring += [(token, slug, fields) for slug, fields in calls]
    assert len(expiring) == 8

    async def are_over() -> bool:
        called = [
            developer.client.call(slug, fields, token=token) for token, slug, fields in expiring
        ]
        return {one.code for one in await asyncio.gather(*called)} == {"TOKEN_EXPIRED"}

    await eventually(are_over)


async def test_invalid_time_to_live_is_refused(owner: Developer) -> None:
    group_id = owner.full_service.group_id
    before = await owner.good("list_group_tokens", group_id=group_id)
    for words, reason in (
        (("--group", group_id, "--expires-in", "30"), "such as 30d or 12h"),
        (("--group", group_id, "--expires-in", "36501d"), "expires_in_ms"),
        (
            ("--kind", "public", "--namespace", "no/where", "--expires-in", "1d"),
            "until it is revoked",
        ),
    ):
        errors = await error_output(owner.full_service.data_dir, "token", "create", *words)
        assert reason in errors
    assert await owner.good("list_group_tokens", group_id=group_id) == before


async def test_missing_objects_are_reported_by_code(owner: Developer) -> None:
    unknown_id, group_id = str(uuid4()), owner.full_service.group_id
    create, member = ("token", "create"), ("group", "add-member", "--identity", unknown_id)
    for words, code in (
        ((*create, "--group", unknown_id), "GROUP_NOT_FOUND"),
        ((*create, "--game", "nowhere"), "GAME_NOT_FOUND"),
        ((*create, "--identity", unknown_id), "NOT_FOUND"),
        ((*create, "--kind", "public", "--namespace", "no/where"), "NAMESPACE_NOT_FOUND"),
        ((*create, "--kind", "public", "--namespace", unknown_id), "NAMESPACE_NOT_FOUND"),
        ((*member, "--group", unknown_id), "GROUP_NOT_FOUND"),
        ((*member, "--group", group_id), "NOT_FOUND"),
        (("group", "create", "--display-name", "x", "--owner", unknown_id), "NOT_FOUND"),
        (("group", "update", unknown_id, "--bio", "x"), "GROUP_NOT_FOUND"),
        (("group", "update", "developers", "--bio", "x"), "BODY_INVALID"),
        (("group", "create", "--display-name", " x"), "VALIDATION_FAILED"),
        (("identity", "create", "--display-name", "x" * 129), "VALIDATION_FAILED"),
        (("identity", "create", "--display-name", ""), "BODY_INVALID"),
    ):
        assert f"{code}: " in await error_output(owner.full_service.data_dir, *words), words


async def test_conflicting_flags_are_refused(owner: Developer) -> None:
    data_dir, group_id = owner.full_service.data_dir, owner.full_service.group_id
    assert "at least one" in await error_output(data_dir, "group", "update", group_id)
    for words in (
        (),
        ("--kind", "public"),
        ("--namespace", "a/b"),
        ("--group", group_id, "--game", "a"),
        ("--group", group_id, "--kind", "public", "--namespace", "a/b"),
    ):
        assert "--" in await error_output(data_dir, "token", "create", *words), words
