"""The static file becomes messages and is fed until it is taken or refused."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from pyservice.dataplane.static_feed import FeedDocumentError, read_feed_file
from tests.dataplane.configurations import (
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    VERSION_ID,
    document,
    version,
)
from tests.dataplane.feed_source import RAW_ID, Source

pytestmark = pytest.mark.anyio


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


async def test_the_file_is_fed(source: Source) -> None:
    source.write(document())
    assert await source.feed() == ()
    assert source.namespaces.resolved(RAW_ID).label == "arena/prod"


async def test_limits_left_out_are_those_of_a_new_namespace(source: Source) -> None:
    fields = document()
    del fields["matchmaker"]
    source.write(fields)
    await source.feed()
    resolved = source.namespaces.resolved(RAW_ID)
    assert (resolved.lobby_count_max, resolved.source_limit) == (512, 256)


async def test_what_is_not_taken_now_is_told_and_tried_until_it_is(source: Source) -> None:
    source.write(document(), document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging"))
    source.away_for = 1 << 30
    async with source.feeding():
        # The first attempt is over: a start does not wait for the others.
        assert set(source.static.problems) == {
            "arena/prod: is not taken yet: STORAGE_FULL",
            "arena/staging: is not taken yet: STORAGE_FULL",
        }
        source.away_for = 3
        await source.until(lambda: not source.static.problems)
    assert len(source.namespaces) == 2


async def test_one_that_is_never_taken_does_not_hold_up_the_others(source: Source) -> None:
    source.write(document(), document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging"))
    source.never = NAMESPACE_ID
    async with source.feeding():
        waiting = ("arena/prod: is not taken yet: OVERLOADED",)
        await source.until(lambda: source.static.problems == waiting)
        assert list(source.namespaces.labels().values()) == ["arena/staging"]
        source.never = ""
        await source.until(lambda: len(source.namespaces) == 2)


async def test_a_reload_takes_the_place_of_what_waits(source: Source) -> None:
    source.write(document())
    source.away_for = 1 << 30
    async with source.feeding():
        source.write(document(revision=2, display_name="Changed"))
        source.static.reload()
        await source.static.wait_fed()
        source.away_for = 0
        await source.until(lambda: not source.static.problems)
    held = source.namespaces.configuration(RAW_ID)
    assert held is not None
    assert (held.revision, held.display_name) == (2, "Changed")


async def test_a_wrong_file_does_not_end_the_feeding_of_what_was_read(source: Source) -> None:
    source.write(document())
    source.away_for = 1 << 30
    async with source.feeding():
        source.path.write_text("nonsense")
        source.static.reload()
        await source.static.wait_fed()
        source.away_for = 0
        await source.until(lambda: len(source.static.problems) == 1)
        assert "is not JSON" in source.static.problems[0]
    assert len(source.namespaces) == 1


async def test_one_refused_namespace_does_not_hold_up_the_others(source: Source) -> None:
    source.write(
        document(versions=[version(duel={"max_players": 300})]),
        document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging"),
    )
    [problem] = await source.feed()
    assert problem.startswith("arena/prod: versions.0.matchmaker.game_modes.duel.max_players: ")
    assert list(source.namespaces.labels().values()) == ["arena/staging"]


async def test_reload_takes_a_changed_file(source: Source) -> None:
    source.write(document())
    task = asyncio.create_task(source.static.run())
    await source.static.wait_fed()
    source.write(document(revision=2, display_name="Changed"))
    source.static.reload()
    await source.static.wait_fed()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    held = source.namespaces.configuration(RAW_ID)
    assert held is not None
    assert held.display_name == "Changed"


async def test_an_older_revision_is_told(source: Source) -> None:
    source.write(document(revision=5))
    await source.feed()
    source.write(document(revision=4))
    source.static.reload()
    [problem] = await source.feed()
    assert "revision 4 is not newer" in problem


async def test_a_change_without_a_greater_revision_is_told_and_changes_nothing(
    source: Source,
) -> None:
    source.write(document(revision=5, display_name="First"))
    assert await source.feed() == ()
    source.write(document(revision=5, display_name="Second"))
    source.static.reload()
    [problem] = await source.feed()
    assert "revision 5 is not newer than what is held (source 0, revision 5)" in problem
    held = source.namespaces.configuration(RAW_ID)
    assert held is not None
    assert held.display_name == "First"
    source.write(document(revision=5, display_name="First"))
    source.static.reload()
    assert await source.feed() == ()


async def test_a_namespace_is_removed_by_saying_so(source: Source) -> None:
    source.write(document())
    await source.feed()
    source.write()
    source.static.reload()
    assert await source.feed() == ()
    assert len(source.namespaces) == 1
    source.write(removed=[{"namespace_id": NAMESPACE_ID, "revision": 2}])
    source.static.reload()
    assert await source.feed() == ()
    assert len(source.namespaces) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON"),
        ("[]", "JSON object"),
        ('{"namespaces": ' + "[" * 200_000, "nested too deeply"),
        ('{"name": 1}', "name: is not known"),
        ('{"namespaces": {}}', "namespaces: has to be a list"),
        ('{"namespaces": [1]}', "namespaces.0: has to be an object"),
        ('{"removed": [{"namespace_id": "x", "revision": 1}]}', "removed.0.namespace_id"),
        ('{"removed": [{"namespace_id": "' + VERSION_ID + '"}]}', "removed.0.revision"),
    ],
)
async def test_a_file_that_is_none_is_refused(source: Source, text: str, problem: str) -> None:
    source.path.write_text(text)
    with pytest.raises(FeedDocumentError, match=problem):
        read_feed_file(source.path)
    [told] = await source.feed()
    assert str(source.path) in told


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"unknown": 1}, "namespaces.0: .*unknown"),
        ({"revision": 0}, "namespaces.0.revision"),
        ({"revision": "x"}, "namespaces.0: .*revision"),
        ({"source_epoch": 1}, "namespaces.0.source_epoch"),
        ({"environment_tokens": [{"sha256": 5}]}, "namespaces.0: .*sha256"),
    ],
)
async def test_a_namespace_that_is_none_is_refused(
    source: Source, changes: dict[str, Any], problem: str
) -> None:
    source.write(document(**changes))
    with pytest.raises(FeedDocumentError, match=problem):
        read_feed_file(source.path)


async def test_a_missing_file_is_told(source: Source) -> None:
    [problem] = await source.feed()
    assert "cannot be read" in problem


async def test_hashes_may_be_hex(source: Source) -> None:
    digest = hashlib.sha256(b"env_x").hexdigest()
    source.write(document(environment_tokens=[{"token_id": VERSION_ID, "sha256": digest}]))
    assert await source.feed() == ()
    grant = source.namespaces.environment_grant(hashlib.sha256(b"env_x").digest())
    assert grant is not None
    assert grant.namespace_id == RAW_ID
