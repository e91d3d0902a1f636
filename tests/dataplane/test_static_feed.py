"""Namespaces and service tokens from a feed file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from pyservice.dataplane.static_feed import FeedDocumentError, read_feed_file
from pyservice.dataplane.token_signing import TokenAdministration
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from pyservice.pb.hosting.internal.v1.admin_pb2 import (
    TOKEN_KIND_ENVIRONMENT,
    TOKEN_KIND_PUBLIC,
    CreateTokenRequest,
    TokenKind,
)
from tests.dataplane.static_feed_scene import RAW_ID, StaticFeedScene
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import (
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    VERSION_ID,
    configuration,
    document,
    version,
)
from tests.support.waiting import cancel, until_met

pytestmark = pytest.mark.anyio


STAGING: dict[str, Any] = {"namespace_id": OTHER_NAMESPACE_ID, "name_id": "staging"}
REFUSED: Any = {"versions": [version(duel={"max_players": 300})]}
DIGEST = hashlib.sha256(b"env_x").digest()


@pytest.fixture
def source(tmp_path: Path) -> StaticFeedScene:
    return StaticFeedScene(tmp_path)


@pytest.fixture
async def filled_feed(source: StaticFeedScene) -> StaticFeedScene:
    source.write(document())
    assert await source.feed() == ()
    return source


def revision_and_name(source: StaticFeedScene) -> tuple[int, str]:
    stored = source.namespaces.configuration(RAW_ID)
    assert stored is not None
    return stored.revision, stored.display_name


async def add_token(source: StaticFeedScene, digest: bytes = DIGEST) -> None:
    await source.static.add_service_token(NAMESPACE_ID, VERSION_ID, digest)


async def test_default_limits(source: StaticFeedScene) -> None:
    fields = document()
    del fields["matchmaker"]
    source.write(fields)
    await source.feed()
    resolved = source.namespaces.resolved(RAW_ID)
    assert (resolved.lobby_count_max, resolved.source_limit) == (512, 256)


async def test_failed_namespaces_are_retried(source: StaticFeedScene) -> None:
    source.write(document(), document(**STAGING))
    source.away_for = 1 << 30
    async with source.feeding():
        assert set(source.static.problems) == {
            "arena/prod: is not applied yet: STORAGE_FULL",
            "arena/staging: is not applied yet: STORAGE_FULL",
        }
        source.away_for = 3
        await until_met(lambda: not source.static.problems)
    assert len(source.namespaces) == 2


async def test_failing_namespace_does_not_block_others(source: StaticFeedScene) -> None:
    source.write(document(), document(**STAGING))
    source.never = NAMESPACE_ID
    async with source.feeding():
        waiting = ("arena/prod: is not applied yet: OVERLOADED",)
        await until_met(lambda: source.static.problems == waiting)
        assert list(source.namespaces.labels().values()) == ["arena/staging"]
        source.never = ""
        await until_met(lambda: len(source.namespaces) == 2)


async def test_reload_replaces_pending_messages(source: StaticFeedScene) -> None:
    source.write(document())
    source.away_for = 1 << 30
    async with source.feeding():
        source.write(document(revision=2, display_name="Changed"))
        source.static.reload()
        await source.static.wait_fed()
        source.away_for = 0
        await until_met(lambda: not source.static.problems)
    assert revision_and_name(source) == (2, "Changed")


async def test_invalid_file_keeps_pending_messages(source: StaticFeedScene) -> None:
    source.write(document())
    source.away_for = 1 << 30
    async with source.feeding():
        source.path.write_text("nonsense")
        source.static.reload()
        await source.static.wait_fed()
        source.away_for = 0
        await until_met(lambda: len(source.static.problems) == 1)
        assert "is not JSON" in source.static.problems[0]
    assert len(source.namespaces) == 1


async def test_refused_namespace_does_not_block_others(source: StaticFeedScene) -> None:
    source.write(document(versions=[version(duel={"max_players": 300})]), document(**STAGING))
    [problem] = await source.feed()
    assert problem.startswith("arena/prod: versions.0.matchmaker.game_modes.duel.max_players: ")
    assert list(source.namespaces.labels().values()) == ["arena/staging"]


async def test_change_without_a_new_revision_is_reported(source: StaticFeedScene) -> None:
    source.write(document(revision=5, display_name="First"))
    assert await source.feed() == ()
    source.write(document(revision=5, display_name="Second"))
    [problem] = await source.feed_again()
    assert "revision 5 is not newer than the stored one (source 0, revision 5)" in problem
    assert revision_and_name(source)[1] == "First"
    source.write(document(revision=5, display_name="First"))
    assert await source.feed_again() == ()


async def test_removed_list_removes_a_namespace(filled_feed: StaticFeedScene) -> None:
    filled_feed.write()
    assert await filled_feed.feed_again() == ()
    assert len(filled_feed.namespaces) == 1
    filled_feed.write(removed=[{"namespace_id": NAMESPACE_ID, "revision": 2}])
    assert await filled_feed.feed_again() == ()
    assert len(filled_feed.namespaces) == 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is not JSON"),
        ("[]", "JSON object"),
        ('{"namespaces": ' + "[" * 200_000, "nested too deeply"),
        ('{"name": 1}', "name: is not known"),
        ('{"namespaces": {}}', "namespaces: must be a list"),
        ('{"namespaces": [1]}', "namespaces.0: must be an object"),
        ('{"removed": [{"namespace_id": "x", "revision": 1}]}', "removed.0.namespace_id"),
        ('{"removed": [{"namespace_id": "' + VERSION_ID + '"}]}', "removed.0.revision"),
        ({"unknown": 1}, "namespaces.0: .*unknown"),
        ({"revision": 0}, "namespaces.0.revision"),
        ({"revision": "x"}, "namespaces.0: .*revision"),
        ({"source_epoch": 1}, "namespaces.0.source_epoch"),
        ({"environment_tokens": [{"sha256": 5}]}, "namespaces.0: .*sha256"),
    ],
)
async def test_invalid_files_are_refused(
    source: StaticFeedScene, content: str | dict[str, Any], problem: str
) -> None:
    if isinstance(content, str):
        source.path.write_text(content)
    else:
        source.write(document(**content))
    with pytest.raises(FeedDocumentError, match=problem):
        read_feed_file(source.path)
    feed = await source.feed()
    assert len(feed) >= 1
    assert all(str(source.path) in line for line in feed)


async def test_missing_file_is_reported(source: StaticFeedScene) -> None:
    [problem] = await source.feed()
    assert "cannot be read" in problem


async def test_hex_hashes_are_accepted(source: StaticFeedScene) -> None:
    source.write(document(environment_tokens=[{"token_id": VERSION_ID, "sha256": DIGEST.hex()}]))
    assert await source.feed() == ()
    assert source.namespaces.native.of_service_token(DIGEST) == RAW_ID


async def test_added_token_is_valid_and_stored(source: StaticFeedScene) -> None:
    source.write(document(revision=7), document(**STAGING))
    source.path.chmod(0o640)
    await source.feed()
    await add_token(source)
    assert source.is_good(DIGEST)
    [first, second] = json.loads(source.path.read_text())["namespaces"]
    assert (first["revision"], second["revision"]) == (8, 1)
    assert first["environment_tokens"] == [{"token_id": VERSION_ID, "sha256": DIGEST.hex()}]
    assert stat.S_IMODE(source.path.stat().st_mode) == 0o640
    assert not list(source.path.parent.glob("*.tmp"))


async def test_concurrent_tokens_are_all_stored(filled_feed: StaticFeedScene) -> None:
    digests = [hashlib.sha256(bytes([number])).digest() for number in range(8)]
    await asyncio.gather(
        *(
            filled_feed.static.add_service_token(
                NAMESPACE_ID, VERSION_ID[:-2] + f"{number:02x}", digest
            )
            for number, digest in enumerate(digests)
        )
    )
    assert all(map(filled_feed.is_good, digests))
    assert json.loads(filled_feed.path.read_text())["namespaces"][0]["revision"] == 9


async def test_token_for_an_unknown_namespace_is_refused(filled_feed: StaticFeedScene) -> None:
    before = filled_feed.path.read_bytes()
    error = await expect_error(
        filled_feed.static.add_service_token(OTHER_NAMESPACE_ID, VERSION_ID, b"x" * 32)
    )
    assert error.code == "VALIDATION_FAILED"
    assert filled_feed.path.read_bytes() == before


@pytest.mark.parametrize("kind", [TOKEN_KIND_PUBLIC, TOKEN_KIND_ENVIRONMENT])
async def test_data_plane_without_a_feed_file_creates_no_token(
    filled_feed: StaticFeedScene, kind: TokenKind
) -> None:
    missing = cast(Any, None)
    administration = TokenAdministration(filled_feed.namespaces, missing, None, missing)
    request = CreateTokenRequest(kind=kind, namespace=NAMESPACE_ID)
    error = await expect_error(administration.create_token(request))
    assert error.code == "CONTROL_PLANE_UNAVAILABLE"


@pytest.mark.parametrize(
    "other",
    [
        document(**STAGING, **REFUSED),
        document(**STAGING, revision="x"),
        {"unknown": 1},
        {"name_id": "\ud800"},
        1,
    ],
)
async def test_invalid_namespace_does_not_block_tokens_of_another(
    filled_feed: StaticFeedScene, other: Any
) -> None:
    filled_feed.write(other, document())
    await add_token(filled_feed)
    assert filled_feed.is_good(DIGEST)
    [unchanged, changed] = json.loads(filled_feed.path.read_text())["namespaces"]
    assert unchanged == other
    assert changed["revision"] == 2
    assert list(filled_feed.namespaces.labels().values()) == ["arena/prod"]


async def test_duplicate_namespace_gets_no_token(filled_feed: StaticFeedScene) -> None:
    filled_feed.write(document(), document(display_name="Other"))
    [problem] = await filled_feed.feed_again()
    assert "namespaces.1.namespace_id: occurs more than once" in problem
    before = filled_feed.path.read_bytes()
    with pytest.raises(ServiceError, match="more than once"):
        await add_token(filled_feed)
    assert filled_feed.path.read_bytes() == before


async def test_removed_namespace_may_return_in_the_same_file(source: StaticFeedScene) -> None:
    source.write(document(revision=3), removed=[{"namespace_id": NAMESPACE_ID, "revision": 2}])
    assert await source.feed() == ()
    assert len(source.namespaces) == 1


async def test_token_list_is_created(source: StaticFeedScene) -> None:
    source.write(document(environment_tokens=None))
    assert await source.feed() == ()
    await add_token(source)
    assert source.is_good(DIGEST)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (REFUSED, "versions.0.matchmaker.game_modes.duel.max_players"),
        ({"revision": 3}, "revision 4 is"),
        ({"revision": 4}, "revision 5 is"),
        ({"revision": (1 << 64) - 1}, "namespaces.1"),
        ({"revision": "x"}, "namespaces.1"),
        ({"environment_tokens": 5}, "namespaces.1"),
    ],
)
async def test_refused_token_changes_nothing(
    source: StaticFeedScene, changes: dict[str, Any], problem: str
) -> None:
    source.write(document(revision=5))
    await source.feed()
    other = document(**STAGING, **REFUSED)
    source.write(other, document(**{"revision": 6, **changes}))
    before = source.path.read_bytes()
    for _ in range(2):
        error = await expect_error(add_token(source))
        assert error.code == "VALIDATION_FAILED"
        assert problem in error.detail
        assert "staging" not in error.detail
        assert source.path.read_bytes() == before
    await source.feed_again()
    assert not source.is_good(DIGEST)


async def test_unstorable_token_changes_nothing(
    filled_feed: StaticFeedScene, tmp_path: Path
) -> None:
    before = filled_feed.path.read_bytes()
    (tmp_path / "feed").rename(tmp_path / "away")
    error = await expect_error(add_token(filled_feed))
    assert error.code == "STORAGE_FULL"
    assert filled_feed.path.read_bytes() == before
    assert not filled_feed.is_good(DIGEST)
    (tmp_path / "away").rename(tmp_path / "feed")
    await add_token(filled_feed)
    assert filled_feed.is_good(DIGEST)


async def test_token_with_a_stale_revision_changes_nothing(filled_feed: StaticFeedScene) -> None:
    before = filled_feed.path.read_bytes()
    newer = pb.ApplyRequest(configuration=configuration(source_epoch=1))
    filled_feed.local.meanwhile = lambda: filled_feed.apply(newer)
    with pytest.raises(ServiceError, match="source 1, revision 1"):
        await add_token(filled_feed)
    assert filled_feed.path.read_bytes() == before
    assert not filled_feed.is_good(DIGEST)


async def test_cancelled_token_is_added_completely_or_not_at_all(
    filled_feed: StaticFeedScene,
) -> None:
    may_go_on = asyncio.Event()
    filled_feed.local.meanwhile = may_go_on.wait
    adding = asyncio.create_task(add_token(filled_feed))
    await until_met(lambda: DIGEST.hex() in filled_feed.path.read_text())
    await cancel(adding)
    may_go_on.set()
    await until_met(lambda: filled_feed.is_good(DIGEST))
    assert await filled_feed.feed_again() == ()


async def test_added_token_applies_pending_changes_of_its_namespace(
    filled_feed: StaticFeedScene,
) -> None:
    filled_feed.write(document(revision=2, display_name="Changed"), document(**STAGING))
    filled_feed.away_for = 1 << 30
    filled_feed.static.reload()
    async with filled_feed.feeding():
        await add_token(filled_feed)
        assert filled_feed.static.problems == ("arena/staging: is not applied yet: STORAGE_FULL",)
        filled_feed.away_for = 0
        await until_met(lambda: not filled_feed.static.problems)
    assert revision_and_name(filled_feed) == (3, "Changed")


async def test_camel_case_file_accepts_tokens(source: StaticFeedScene) -> None:
    fields = document()
    fields["namespaceId"] = fields.pop("namespace_id")
    first = hashlib.sha256(b"env_first").digest()
    fields["environmentTokens"] = [{"tokenId": NAMESPACE_ID, "sha256": first.hex()}]
    source.write(fields)
    assert await source.feed() == ()
    await add_token(source)
    assert source.is_good(first)
    assert source.is_good(DIGEST)
