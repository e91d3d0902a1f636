"""Join rules of previous versions, and their limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.dataplane import configuration_feed as feed_module
from pyservice.dataplane.configuration_feed import (
    RETAINED_BYTES_MAX,
    RETAINED_MAX,
    ConfigurationFeed,
    admission_rules_only,
)
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.feed_files import FeedFiles, StoredNamespace
from pyservice.dataplane.feed_validation import MATCHMAKER_BYTES_MAX, OperatorLimits
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.observability.metrics import FeedMetrics
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from pyservice.pb.hosting.internal.v1.configuration_pb2 import NamespaceConfiguration
from tests.dataplane.admission_scene import CAPTCHA_RULE
from tests.support.data_plane_service import attach_lobby, running_engine
from tests.support.matchmaker_scene import (
    ENVIRONMENT_TOKENS,
    MODES,
    MatchmakerScene,
    attach_request,
)
from tests.support.namespace_configurations import NAMESPACE_ID, VERSION_ID, configuration, version
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

CAPTCHA = {"captcha": CAPTCHA_RULE}
LIMITS = OperatorLimits(256, {"north", "south"}, (), ("captcha_a",))


class Files(FeedFiles):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go_on = threading.Event()
        self.go_on.set()
        self.is_saving = threading.Event()
        self.steps: list[str] = []

    def save(self, several: Iterable[StoredNamespace]) -> None:
        self.is_saving.set()
        assert self.go_on.wait(30)
        super().save(several)
        self.steps.append("saved")


class Lobbies:
    def __init__(self, engine: Engine, steps: list[str]) -> None:
        self._engine = engine
        self._steps = steps

    def live_versions(self, namespace: bytes) -> Collection[bytes]:
        return self._engine.live_versions(namespace)

    async def wait_all_durable(self, deadline: float | None) -> None:
        await self._engine.wait_all_durable(deadline)
        self._steps.append("settled")


class Plane(MatchmakerScene):
    def __init__(self, engine: Engine, folder: Path) -> None:
        super().__init__(engine)
        self.folder = folder
        self.files = Files(folder)
        self._feed = ConfigurationFeed(self.files, self.namespaces, LIMITS, FeedMetrics())
        self._feed.live_lobbies = Lobbies(engine, self.files.steps)
        self._feed.load()
        self.revision = 0

    async def switch(self, number: int, level: dict[str, Any] | None = None) -> pb.ApplyResponse:
        return await self.take(**at(number, level))

    def next_revision(self, **changes: Any) -> NamespaceConfiguration:
        fields = {"environment_tokens": ENVIRONMENT_TOKENS, **changes}
        return configuration(source_epoch=1, revision=self.revision + 1, **fields)

    async def take(self, **changes: Any) -> pb.ApplyResponse:
        feed = self.next_revision(**changes)
        answer = await self._feed.apply(pb.ApplyRequest(configuration=feed))
        if answer.HasField("applied"):
            self.revision += 1
        return answer

    def again(self) -> Plane:
        plane = Plane(self.engine, self.folder)
        plane.revision = self.revision
        return plane

    def retained(self) -> list[str]:
        stored = self.namespaces.configuration(raw_id(NAMESPACE_ID))
        assert stored is not None
        return [one.version_id for one in stored.retained_versions]

    def has_join_rules(self, lobby_id: str) -> bool:
        lobby = self.live_lobby(lobby_id)
        gates = self.namespaces.resolved(raw_id(NAMESPACE_ID)).admission_rules
        return gates is not None and gates.join(lobby.version, lobby.mode).captcha is not None

    async def end(self, lobby_id: str) -> None:
        await self.engine.detach([raw_id(NAMESPACE_ID)], raw_id(lobby_id), None)


def version_id(number: int) -> str:
    return f"{VERSION_ID[:-4]}{number:04x}"


def at(number: int, level: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "current_version_id": version_id(number),
        "versions": [version(version_id(number), level, **MODES)],
    }


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    async with running_engine(tmp_path) as engine:
        yield Plane(engine, tmp_path / "feed")


async def test_lobby_keeps_join_rules_after_a_switch(plane: Plane) -> None:
    await plane.switch(1, CAPTCHA)
    asking = (await plane.attach()).lobby_id
    await plane.switch(2)
    open_ = (await plane.attach()).lobby_id
    await plane.switch(3, CAPTCHA)
    for one in (plane, plane.again()):
        assert (one.has_join_rules(asking), one.has_join_rules(open_)) == (True, False)
        assert one.retained() == [version_id(1), version_id(2)]


async def test_lobby_created_during_a_switch_keeps_join_rules(plane: Plane) -> None:
    await plane.switch(1, CAPTCHA)
    plane.files.go_on.clear()
    plane.files.is_saving.clear()
    switching = asyncio.create_task(plane.switch(2))
    await until_met(plane.files.is_saving.is_set)
    lobby_id = (await plane.attach()).lobby_id
    plane.files.go_on.set()
    assert (await switching).HasField("applied")
    assert plane.has_join_rules(lobby_id)
    await plane.switch(3)
    await plane.switch(4)
    assert plane.has_join_rules(lobby_id)
    assert plane.again().has_join_rules(lobby_id)


async def test_version_is_dropped_after_the_end_of_its_last_lobby(plane: Plane) -> None:
    await plane.switch(1, CAPTCHA)
    first, last = [(await plane.attach()).lobby_id for _ in range(2)]
    await plane.switch(2)
    await plane.end(first)
    await plane.take(**at(2), display_name="Other")
    assert plane.retained() == [version_id(1)]
    plane.files.steps.clear()
    await plane.end(last)
    await plane.take(**at(2), display_name="Another")
    assert plane.retained() == []
    assert plane.files.steps == ["settled", "saved"]


async def test_restored_version_is_not_kept_twice(plane: Plane) -> None:
    await plane.switch(1, CAPTCHA)
    lobby_id = (await plane.attach()).lobby_id
    await plane.switch(2)
    await plane.switch(1, CAPTCHA)
    # The previous version is kept for one change, even without lobbies.
    assert plane.retained() == [version_id(2)]
    assert plane.has_join_rules(lobby_id)
    await plane.take(**at(1, CAPTCHA), display_name="Other")
    assert plane.retained() == []


async def test_listed_versions_are_not_changed(plane: Plane) -> None:
    both = [version(version_id(number), CAPTCHA, **MODES) for number in (1, 2)]
    await plane.take(current_version_id=version_id(1), versions=both)
    lobby_id = (await plane.attach()).lobby_id
    await plane.take(current_version_id=version_id(2), versions=both)
    assert plane.retained() == []
    assert plane.has_join_rules(lobby_id)
    await plane.take(current_version_id=version_id(2), versions=both[1:])
    assert plane.retained() == [version_id(1)]
    assert plane.has_join_rules(lobby_id)


async def test_attach_uses_the_version_at_the_access_check(plane: Plane) -> None:
    await plane.switch(1, CAPTCHA)

    async def reaches(token: str, game_id: bytes) -> bool:
        await plane.switch(2)
        await plane.switch(3, CAPTCHA)
        await plane.take(**at(3, CAPTCHA), display_name="Other")
        return True

    plane.wire(can_access_game=reaches)
    call = Call(ray_id="0" * 32, address=b"\x7f\0\0\1", authorization="Bearer cloud_shown")
    cloud = Caller(TokenKind.CLOUD, b"", b"", b"t" * 16, call)
    attached = await plane.fleet.attach(attach_request(), cloud)
    assert plane.live_lobby(attached.lobby_id).version == raw_id(version_id(3))
    assert plane.has_join_rules(attached.lobby_id)


def bulky(size: int) -> dict[str, Any]:
    return {"captcha": {**CAPTCHA_RULE, "captcha_a": {"secret_key": "s" * size, "site_key": "k"}}}


async def test_retained_bytes_limit(plane: Plane) -> None:
    size = 400_000
    lobbies = []
    for number in (1, 2, 3):
        assert (await plane.switch(number, bulky(size))).HasField("applied")
        lobbies.append((await plane.attach()).lobby_id)
    for answer in (await plane._feed.check(plane.next_revision(**at(4))), await plane.switch(4)):
        [problem] = answer.refused.problems
        assert list(problem.path) == ["current_version_id"]
        assert f"at most {RETAINED_BYTES_MAX:,}" in problem.reason
        assert "end lobbies of older versions" in problem.reason
    changed = await plane.take(**at(3, bulky(size)), revoked_token_ids=[NAMESPACE_ID])
    assert changed.HasField("applied")
    assert len(plane.retained()) == 2
    await plane.end(lobbies[0])
    assert (await plane.switch(4)).HasField("applied")
    assert plane.retained() == [version_id(2), version_id(3)]


async def test_retained_versions_limit(plane: Plane) -> None:
    await plane.switch(1)
    lobby_id = (await plane.attach()).lobby_id
    ids = [version_id(number) for number in range(1, RETAINED_MAX + 2)]
    for one in ids:
        attach_lobby(plane.engine, raw_id(NAMESPACE_ID), raw_id(one))
    named = [version(one, duel={}) for one in ids]
    await plane.take(current_version_id=ids[0], versions=named)
    answer = await plane.switch(0xF000)
    [problem] = answer.refused.problems
    assert list(problem.path) == ["current_version_id"]
    assert f"at most {RETAINED_MAX:,}" in problem.reason
    await plane.take(current_version_id=ids[0], versions=[named[0], *named[2:]])
    assert plane.retained() == [ids[1]]
    assert not plane.has_join_rules(lobby_id)


def test_retained_rules_are_join_captcha_and_verification() -> None:
    asking = {"enabled": True, "verification": {"url": "https://game.example/ask"}}
    duel = {
        "actions": {"join": asking, "find": asking},
        "max_players": 9,
        "docker": {"env": {"A": "a" * 8_000}},
    }
    full = configuration(
        versions=[version(VERSION_ID, {**CAPTCHA, "tier": "t"}, duel=duel, free={})]
    )
    expected = configuration(
        versions=[version(VERSION_ID, CAPTCHA, duel={"actions": {"join": asking}}, free={})]
    )
    assert admission_rules_only(full.versions[0]) == expected.versions[0]


async def test_retained_versions_cannot_be_fed(plane: Plane) -> None:
    answer = await plane.take(retained_versions=[version(version_id(9), duel={})])
    assert [list(one.path) for one in answer.refused.problems] == [["retained_versions"]]


def large(size: int) -> dict[str, Any]:
    return {"docker": {"env": {f"V{number}": "v" * 8_000 for number in range(size // 8_010)}}}


async def test_oversized_version_is_refused_unless_current(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = at(1, large(500_000))
    assert (await plane.take(**feed)).HasField("applied")
    too_large = at(2, bulky(MATCHMAKER_BYTES_MAX))
    [problem] = (await plane.take(**too_large)).refused.problems
    assert list(problem.path) == ["versions", "0", "matchmaker"]
    assert f"at most {MATCHMAKER_BYTES_MAX:,}" in problem.reason
    monkeypatch.setattr("pyservice.dataplane.feed_validation.MATCHMAKER_BYTES_MAX", 1_000)
    assert (await plane.take(**feed, display_name="Other")).HasField("applied")


async def test_large_messages_are_processed_in_a_thread(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}

    def noting(name: str) -> None:
        real = getattr(feed_module, name)

        def noted(*arguments: Any) -> Any:
            threads[name] = threading.get_ident()
            return real(*arguments)

        monkeypatch.setattr(feed_module, name, noted)

    steps = (
        "own_problems conflict_problems retain_versions prepare_namespace _with_retained _claims"
    )
    for name in steps.split():
        noting(name)
    assert (await plane.take(**at(1, large(500_000)))).HasField("applied")
    assert len(threads) == 6
    assert threading.get_ident() not in threads.values()
    threads.clear()
    assert (await plane.take(**at(2))).HasField("applied")
    assert threading.get_ident() not in threads.values()
    assert (await plane.take(**at(3))).HasField("applied")
    assert set(threads.values()) == {threading.get_ident()}
