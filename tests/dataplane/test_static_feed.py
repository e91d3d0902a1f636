"""The static file becomes messages, is fed until it is taken, and gets the hashes of new tokens."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from pyservice.dataplane.feed import Feed
from pyservice.dataplane.feed_files import FeedFiles
from pyservice.dataplane.feed_rules import OperatorLimits
from pyservice.dataplane.namespaces import Namespaces
from pyservice.dataplane.static_feed import StaticFeed, StaticFeedError, read
from pyservice.errors import ServiceError
from pyservice.observability.metrics import FeedMetrics
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from tests.dataplane.configurations import (
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    VERSION_ID,
    document,
    version,
)

pytestmark = pytest.mark.anyio

RAW_ID = bytes.fromhex(NAMESPACE_ID.replace("-", ""))


class Source:
    """A feed file, and a data plane's feed that may be away for a while."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "feed.json"
        self.namespaces = Namespaces()
        limits = OperatorLimits(player_limit_max=256, regions={"local"})
        self._feed = Feed(FeedFiles(folder / "feed"), self.namespaces, limits, FeedMetrics())
        self._feed.load()
        self.away_for = 0
        self.static = StaticFeed(self.path, self, retry_s=0.001)

    def write(self, *namespaces: dict[str, Any], **other: Any) -> None:
        self.path.write_text(json.dumps({"namespaces": list(namespaces), **other}))

    async def apply(self, request: pb.ApplyRequest) -> pb.ApplyResponse:
        self._maybe_away()
        return await self._feed.apply(request)

    async def remove(self, request: pb.RemoveRequest) -> pb.RemoveResponse:
        self._maybe_away()
        return await self._feed.remove(request)

    def _maybe_away(self) -> None:
        if self.away_for:
            self.away_for -= 1
            raise ServiceError("STORAGE_FULL")

    async def feed(self) -> tuple[str, ...]:
        """Feeds once and returns the problems."""
        task = asyncio.create_task(self.static.run())
        try:
            await self.static.fed()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return self.static.problems


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


async def test_it_is_tried_until_it_is_taken(source: Source) -> None:
    source.write(document())
    source.away_for = 3
    assert await source.feed() == ()
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
    await source.static.fed()
    source.write(document(revision=2, display_name="Changed"))
    source.static.reload()
    await source.static.fed()
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
    assert "revision 4 is older" in problem


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
        ('{"name": 1}', "name: is not known"),
        ('{"namespaces": {}}', "namespaces: has to be a list"),
        ('{"namespaces": [1]}', "namespaces.0: has to be an object"),
        ('{"removed": [{"namespace_id": "x", "revision": 1}]}', "removed.0.namespace_id"),
        ('{"removed": [{"namespace_id": "' + VERSION_ID + '"}]}', "removed.0.revision"),
    ],
)
async def test_a_file_that_is_none_is_refused(source: Source, text: str, problem: str) -> None:
    source.path.write_text(text)
    with pytest.raises(StaticFeedError, match=problem):
        read(source.path)
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
    with pytest.raises(StaticFeedError, match=problem):
        read(source.path)


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
