"""Environment tokens get into the feed file and are good at once, or leave no trace."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from tests.dataplane.configurations import (
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    VERSION_ID,
    configuration,
    document,
    version,
)
from tests.dataplane.feed_source import RAW_ID, Source

pytestmark = pytest.mark.anyio


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


async def test_a_token_is_good_and_in_the_file_when_it_was_added(source: Source) -> None:
    source.write(document(revision=7), document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging"))
    source.path.chmod(0o640)
    await source.feed()
    digest = hashlib.sha256(b"env_x").digest()
    await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, digest)
    assert source.namespaces.environment_grant(digest) is not None
    [first, second] = json.loads(source.path.read_text())["namespaces"]
    assert (first["revision"], second["revision"]) == (8, 1)
    assert first["environment_tokens"] == [{"token_id": VERSION_ID, "sha256": digest.hex()}]
    assert stat.S_IMODE(source.path.stat().st_mode) == 0o640
    assert not list(source.path.parent.glob("*.tmp"))


async def test_tokens_added_at_once_are_all_kept(source: Source) -> None:
    source.write(document())
    await source.feed()
    digests = [hashlib.sha256(bytes([number])).digest() for number in range(8)]
    await asyncio.gather(
        *(
            source.static.add_environment_token(
                NAMESPACE_ID, VERSION_ID[:-2] + f"{number:02x}", digest
            )
            for number, digest in enumerate(digests)
        )
    )
    assert all(source.namespaces.environment_grant(digest) for digest in digests)
    assert json.loads(source.path.read_text())["namespaces"][0]["revision"] == 9


async def test_a_token_for_a_namespace_that_is_not_in_the_file_is_refused(source: Source) -> None:
    source.write(document())
    await source.feed()
    before = source.path.read_bytes()
    with pytest.raises(ServiceError) as caught:
        await source.static.add_environment_token(OTHER_NAMESPACE_ID, VERSION_ID, b"x" * 32)
    assert caught.value.code == "VALIDATION_FAILED"
    assert source.path.read_bytes() == before


REFUSED: Any = {"versions": [version(duel={"max_players": 300})]}
DIGEST = hashlib.sha256(b"env_x").digest()


@pytest.mark.parametrize(
    "other",
    [
        document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging", **REFUSED),
        document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging", revision="x"),
        {"unknown": 1},
        {"name_id": "\ud800"},
        1,
    ],
)
async def test_a_wrong_namespace_has_no_say_in_the_tokens_of_another(
    source: Source, other: Any
) -> None:
    source.write(document())
    await source.feed()
    source.write(other, document())
    await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
    assert source.is_good(DIGEST)
    [kept, changed] = json.loads(source.path.read_text())["namespaces"]
    assert kept == other
    assert changed["revision"] == 2
    assert list(source.namespaces.labels().values()) == ["arena/prod"]


async def test_a_namespace_that_is_there_twice_is_refused_and_gets_no_token(
    source: Source,
) -> None:
    source.write(document())
    await source.feed()
    source.write(document(), document(display_name="Other"))
    source.static.reload()
    [problem] = await source.feed()
    assert "namespaces.1.namespace_id: is there more than once" in problem
    before = source.path.read_bytes()
    with pytest.raises(ServiceError, match="more than once"):
        await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
    assert source.path.read_bytes() == before


async def test_a_removed_namespace_may_come_back_in_the_same_file(source: Source) -> None:
    source.write(document(revision=3), removed=[{"namespace_id": NAMESPACE_ID, "revision": 2}])
    assert await source.feed() == ()
    assert len(source.namespaces) == 1


async def test_a_namespace_without_a_list_of_tokens_takes_one(source: Source) -> None:
    source.write(document(environment_tokens=None))
    assert await source.feed() == ()
    await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
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
async def test_a_token_that_cannot_be_good_leaves_nothing(
    source: Source, changes: dict[str, Any], problem: str
) -> None:
    source.write(document(revision=5))
    await source.feed()
    other = document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging", **REFUSED)
    source.write(other, document(**{"revision": 6, **changes}))
    before = source.path.read_bytes()
    for _ in range(2):
        with pytest.raises(ServiceError) as caught:
            await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
        assert caught.value.code == "VALIDATION_FAILED"
        assert problem in caught.value.detail
        assert "staging" not in caught.value.detail
        assert source.path.read_bytes() == before
    source.static.reload()
    await source.feed()
    assert not source.is_good(DIGEST)


async def test_a_token_that_cannot_be_kept_leaves_nothing(source: Source, tmp_path: Path) -> None:
    source.write(document())
    await source.feed()
    before = source.path.read_bytes()
    (tmp_path / "feed").rename(tmp_path / "away")
    with pytest.raises(ServiceError) as caught:
        await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
    assert caught.value.code == "STORAGE_FULL"
    assert source.path.read_bytes() == before
    assert not source.is_good(DIGEST)
    (tmp_path / "away").rename(tmp_path / "feed")
    await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
    assert source.is_good(DIGEST)


async def test_a_token_overtaken_by_another_feeder_leaves_nothing(source: Source) -> None:
    source.write(document())
    await source.feed()
    before = source.path.read_bytes()
    newer = pb.ApplyRequest(configuration=configuration(source_epoch=1))
    source.local.meanwhile = lambda: source.apply(newer)
    with pytest.raises(ServiceError, match="source 1, revision 1"):
        await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
    assert source.path.read_bytes() == before
    assert not source.is_good(DIGEST)


async def test_a_token_is_whole_or_not_at_all_when_nobody_waits_for_it(source: Source) -> None:
    source.write(document())
    await source.feed()
    may_go_on = asyncio.Event()
    source.local.meanwhile = may_go_on.wait
    adding = asyncio.create_task(
        source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
    )
    await source.until(lambda: DIGEST.hex() in source.path.read_text())
    adding.cancel()
    await asyncio.gather(adding, return_exceptions=True)
    may_go_on.set()
    await source.until(lambda: source.is_good(DIGEST))
    source.static.reload()
    assert await source.feed() == ()


async def test_a_token_brings_what_waits_of_its_namespace(source: Source) -> None:
    source.write(document())
    await source.feed()
    source.write(
        document(revision=2, display_name="Changed"),
        document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging"),
    )
    source.away_for = 1 << 30
    source.static.reload()
    async with source.feeding():
        await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
        assert source.static.problems == ("arena/staging: is not taken yet: STORAGE_FULL",)
        source.away_for = 0
        await source.until(lambda: not source.static.problems)
    held = source.namespaces.configuration(RAW_ID)
    assert held is not None
    assert (held.revision, held.display_name) == (3, "Changed")


async def test_a_file_in_the_other_json_form_takes_tokens(source: Source) -> None:
    fields = document()
    fields["namespaceId"] = fields.pop("namespace_id")
    first = hashlib.sha256(b"env_first").digest()
    fields["environmentTokens"] = [{"tokenId": NAMESPACE_ID, "sha256": first.hex()}]
    source.write(fields)
    assert await source.feed() == ()
    await source.static.add_environment_token(NAMESPACE_ID, VERSION_ID, DIGEST)
    assert source.is_good(first)
    assert source.is_good(DIGEST)
