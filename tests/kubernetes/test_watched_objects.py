from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pyservice.kubernetes.api import ApiError, KubernetesApi, Object
from pyservice.kubernetes.watched_objects import WatchedObjects
from tests.support.captured_logs import logged
from tests.support.kubernetes_api_server import PODS, ApiServer, open_api
from tests.support.waiting import cancel, until_met

pytestmark = pytest.mark.anyio


def pod(name: str, service: str = "us") -> Object:
    return {"metadata": {"name": name, "labels": {"service": service}}}


class Noted:
    """UIDs of the objects that exist for the observer, by name, and all calls."""

    def __init__(self) -> None:
        self.uids: dict[str, str] = {}
        self.calls: list[str] = []

    def observe(self, found: Object) -> None:
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        assert self.uids.get(name) in (None, uid), "the end of the earlier one comes first"
        self.uids[name] = uid
        self.calls.append(f"+{name}")

    def observe_gone(self, name: str, uid: str, last: Object | None) -> None:
        assert self.uids.pop(name) == uid
        assert last is None or last["metadata"]["uid"] == uid
        self.calls.append(f"-{name}" + (" listed" if last is None else ""))


@asynccontextmanager
async def following(
    server: ApiServer, api: KubernetesApi, noted: Noted
) -> AsyncIterator[WatchedObjects]:
    watched = WatchedObjects(api, PODS, noted, "service=us")
    await watched.list_()
    task = asyncio.create_task(watched.run())
    await until_met(lambda: server.watch_count)
    try:
        yield watched
    finally:
        await cancel(task)


async def watch_again(server: ApiServer, watches: int) -> None:
    """Waits until a watch that began after the first `watches` is open."""
    await until_met(lambda: len(server.seen("watch")) > watches and server.watch_count)


async def test_changes_arrive_without_another_list(server: ApiServer, api: KubernetesApi) -> None:
    server.put(PODS, pod("a"))
    server.put(PODS, pod("theirs", "them"))
    noted = Noted()
    async with following(server, api, noted):
        server.put(PODS, pod("b"))
        server.change(PODS, "b", {"spec": {"nodeName": "n1"}})
        server.remove(PODS, "a")
        await until_met(lambda: len(noted.calls) == 4)
    assert noted.calls == ["+a", "+b", "+b", "-a"]
    assert len(server.seen("list")) == 1


@pytest.mark.parametrize("way", ["ended", "compacted", "silent", "unreadable", "away"])
async def test_nothing_is_missed_over_the_end_of_a_watch(server: ApiServer, way: str) -> None:
    for name in ("stays", "goes", "replaced"):
        server.put(PODS, pod(name))
    noted = Noted()
    async with open_api(server, silence_max_s=0.5) as api, following(server, api, noted):
        watches = len(server.seen("watch"))
        server.is_silent = True
        server.remove(PODS, "goes")
        server.remove(PODS, "replaced")
        server.put(PODS, pod("replaced"))
        server.put(PODS, pod("new"))
        await until_met(lambda: server.has_sent_all)
        match way:
            case "ended":
                server.end_watches()
            case "compacted":
                server.compact()
                server.end_watches()
            case "unreadable":
                server.is_silent = False
                server.send_to_watches(b"{\n")
            case "away":
                server.is_away = True
                server.end_watches()
                tries = len(server.requests)
                await until_met(lambda: len(server.requests) > tries + 2)
                server.is_away = False
        await watch_again(server, watches)
        server.is_silent = False
        await until_met(lambda: set(noted.uids) == {"stays", "replaced", "new"})
        assert noted.uids == {name: one["metadata"]["uid"] for name, one in server.pods.items()}
        assert noted.calls.count("-goes listed") == 1
        server.put(PODS, pod("later"))
        await until_met(lambda: "later" in noted.uids)


async def test_lost_label_is_an_end_with_the_last_state(
    server: ApiServer, api: KubernetesApi
) -> None:
    server.put(PODS, pod("a"))
    noted = Noted()
    async with following(server, api, noted):
        server.change(PODS, "a", {"metadata": {"labels": {"service": "them"}}})
        await until_met(lambda: noted.calls == ["+a", "-a"])
        server.remove(PODS, "a")
        server.put(PODS, pod("b"))
        await until_met(lambda: noted.calls == ["+a", "-a", "+b"])


async def test_many_objects_are_listed_in_pages(server: ApiServer, api: KubernetesApi) -> None:
    for number in range(600):
        server.put(PODS, pod(f"pod-{number}"))
    noted = Noted()
    async with following(server, api, noted):
        assert len(noted.uids) == 600
    assert len(server.seen("list")) == 3


async def test_missing_right_is_logged_with_verb_and_resource(
    server: ApiServer, api: KubernetesApi
) -> None:
    server.forbidden = {("list", "pods")}
    noted = Noted()
    watched = WatchedObjects(api, PODS, noted)
    with pytest.raises(ApiError, match='cannot list resource "pods"'):
        await watched.list_()
    server.put(PODS, pod("a"))
    with logged() as log:
        task = asyncio.create_task(watched.run())
        await until_met(lambda: r"cannot list resource \"pods\"" in log.getvalue())
        server.forbidden.clear()
        await until_met(lambda: "a" in noted.uids)
        await cancel(task)
