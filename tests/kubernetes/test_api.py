from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path

import pytest

from pyservice.kubernetes.api import ApiError, Change, Collection, KubernetesApi, Object, pods_of
from pyservice.kubernetes.cluster_access import ClusterAccess, Credentials
from tests.support.certificates import HOST, Certificates
from tests.support.kubernetes_api_server import NODES, PODS, ApiServer, open_api, open_server
from tests.support.waiting import PATIENCE_S, cancel, until_met

pytestmark = pytest.mark.anyio


def pod(name: str, **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"terminationGracePeriodSeconds": 30},
    }


class Watch:
    """Changes that a watch has yielded so far, and how it ended."""

    def __init__(self, api: KubernetesApi, version: str, selector: str = "") -> None:
        self.changes: list[Change] = []
        self.task = asyncio.create_task(self._follow(api, version, selector))

    async def _follow(self, api: KubernetesApi, version: str, selector: str) -> None:
        async for change in api.watch(PODS, version, selector=selector):
            self.changes.append(change)

    @property
    def seen(self) -> list[tuple[str, str]]:
        return [(one.kind, one.object["metadata"].get("name", "")) for one in self.changes]

    async def error(self) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await asyncio.wait_for(self.task, PATIENCE_S)
        return caught.value


async def open_watch(server: ApiServer, api: KubernetesApi, selector: str = "") -> Watch:
    watch = Watch(api, str(server.version), selector)
    await until_met(lambda: server.watch_count or watch.task.done())
    return watch


def test_paths_are_those_of_the_api() -> None:
    assert pods_of("games").path == "/api/v1/namespaces/games/pods"
    assert NODES.path == "/api/v1/nodes"
    budgets = Collection("poddisruptionbudgets", "games", "policy")
    assert budgets.path == "/apis/policy/v1/namespaces/games/poddisruptionbudgets"
    assert str(budgets) == "poddisruptionbudgets.policy in namespace games"


async def test_object_is_created_read_patched_and_deleted(
    server: ApiServer, api: KubernetesApi
) -> None:
    made = await api.create(PODS, pod("a", app="game"))
    uid = made["metadata"]["uid"]
    assert await api.get(PODS, "a") == made
    changed = await api.patch(PODS, "a", {"metadata": {"labels": {"app": None, "more": "yes"}}})
    assert changed["metadata"]["labels"] == {"more": "yes"}
    assert await api.delete(PODS, "a", uid=uid)
    with pytest.raises(ApiError) as caught:
        await api.get(PODS, "a")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
    assert str(caught.value) == 'get pods in namespace games: pods "a" not found'


async def test_list_yields_pages_of_objects_with_the_labels(
    server: ApiServer, api: KubernetesApi
) -> None:
    for number in range(5):
        server.put(PODS, pod(f"ours-{number}", service="us"))
        server.put(PODS, pod(f"theirs-{number}", service="them"))
    pages = [page async for page in api.list_pages(PODS, selector="service=us", page_objects=2)]
    assert [[one["metadata"]["name"] for one in page.objects] for page in pages] == [
        ["ours-0", "ours-1"],
        ["ours-2", "ours-3"],
        ["ours-4"],
    ]
    assert {page.version for page in pages} == {str(server.version)}


async def test_page_that_comes_too_late_is_reported_as_410(
    server: ApiServer, api: KubernetesApi
) -> None:
    for number in range(3):
        server.put(PODS, pod(f"pod-{number}"))
    pages = api.list_pages(PODS, page_objects=2)
    assert len((await anext(pages)).objects) == 2
    server.compact()
    with pytest.raises(ApiError) as caught:
        await anext(pages)
    assert caught.value.status == 410


async def test_watch_yields_changes_after_its_version(
    server: ApiServer, api: KubernetesApi
) -> None:
    server.put(PODS, pod("before", app="game"))
    watch = await open_watch(server, api, "app=game")
    server.put(PODS, pod("a", app="game"))
    server.put(PODS, pod("other", app="web"))
    server.bind("a", "n1")
    server.send_bookmarks()
    server.remove(PODS, "a")
    server.put(PODS, pod("before", app="renamed"))
    server.end_watches()
    await asyncio.wait_for(watch.task, PATIENCE_S)
    assert watch.seen == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("BOOKMARK", ""),
        ("DELETED", "a"),
        ("DELETED", "before"),
    ]
    assert watch.changes[1].object["spec"]["nodeName"] == "n1"


async def test_watch_has_no_gap_between_list_and_watch(
    server: ApiServer, api: KubernetesApi
) -> None:
    [page] = [page async for page in api.list_pages(PODS)]
    server.put(PODS, pod("a"))
    server.remove(PODS, "a")
    watch = Watch(api, page.version)
    await until_met(lambda: len(watch.changes) == 2)
    assert watch.seen == [("ADDED", "a"), ("DELETED", "a")]
    await cancel(watch.task)


async def test_long_object_is_one_change(server: ApiServer, api: KubernetesApi) -> None:
    watch = await open_watch(server, api)
    long = pod("long")
    long["metadata"]["annotations"] = {"text": "x" * (1 << 20)}
    server.put(PODS, long)
    server.put(PODS, pod("short"))
    await until_met(lambda: len(watch.changes) == 2)
    assert watch.changes[0].object["metadata"]["annotations"] == long["metadata"]["annotations"]
    await cancel(watch.task)


async def test_too_old_version_ends_the_watch_with_410(
    server: ApiServer, api: KubernetesApi
) -> None:
    server.put(PODS, pod("a"))
    server.compact()
    error = await Watch(api, "1").error()
    assert (error.status, error.reason) == (410, "Expired")
    assert str(error).startswith("watch pods in namespace games: too old resource version")


async def test_silent_watch_ends_and_bookmarks_keep_it_open(server: ApiServer) -> None:
    async with open_api(server, silence_max_s=0.5) as api:
        watch = await open_watch(server, api)
        for _ in range(4):
            await asyncio.sleep(0.25)
            server.send_bookmarks()
        await until_met(lambda: len(watch.changes) == 4)
        server.is_silent = True
        assert (await watch.error()).status == 0


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b'{"type": "NEW", "object": {}}\n'])
async def test_unreadable_event_ends_the_watch(
    server: ApiServer, api: KubernetesApi, line: bytes
) -> None:
    watch = await open_watch(server, api)
    server.send_to_watches(line)
    assert (await watch.error()).status == 0


async def test_missing_right_names_verb_and_resource(server: ApiServer, api: KubernetesApi) -> None:
    server.forbidden = {("watch", "pods"), ("list", "nodes"), ("create", "pods")}
    error = await Watch(api, str(server.version)).error()
    assert (error.status, error.reason, error.is_final) == (403, "Forbidden", True)
    assert 'cannot watch resource "pods"' in str(error)
    with pytest.raises(ApiError, match=r'list nodes: .* cannot list resource "nodes"'):
        [page async for page in api.list_pages(NODES)]
    with pytest.raises(ApiError, match='cannot create resource "pods"'):
        await api.create(PODS, pod("a"))
    assert not server.pods


async def test_name_that_exists_is_a_conflict(server: ApiServer, api: KubernetesApi) -> None:
    await api.create(PODS, pod("a"))
    with pytest.raises(ApiError) as caught:
        await api.create(PODS, pod("a"))
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")
    assert not caught.value.is_final


async def test_deletion_spares_another_object_with_the_name(
    server: ApiServer, api: KubernetesApi
) -> None:
    uid = (await api.create(PODS, pod("a")))["metadata"]["uid"]
    server.remove(PODS, "a")
    assert not await api.delete(PODS, "a", uid=uid), "nothing is there"
    await api.create(PODS, pod("a"))
    assert not await api.delete(PODS, "a", uid=uid), "another one is there"
    assert server.pod("a") is not None


async def test_pod_on_a_node_is_gone_when_its_node_has_stopped_it(
    server: ApiServer, api: KubernetesApi
) -> None:
    uid = (await api.create(PODS, pod("a")))["metadata"]["uid"]
    server.bind("a", "n1")
    assert await api.delete(PODS, "a", uid=uid, grace_s=20)
    assert await api.delete(PODS, "a", uid=uid, grace_s=5), "a shorter time replaces a longer one"
    assert await api.delete(PODS, "a", uid=uid, grace_s=60)
    stopping = server.pods["a"]["metadata"]
    assert stopping["deletionGracePeriodSeconds"] == 5
    server.finish("a", 0)
    assert server.pod("a") is None


async def test_throttled_request_says_when_to_repeat(server: ApiServer, api: KubernetesApi) -> None:
    server.throttled = 1
    with pytest.raises(ApiError) as caught:
        await api.create(PODS, pod("a"))
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1.0)
    assert not caught.value.is_final


async def test_server_that_is_away_is_an_error_without_status(
    server: ApiServer, api: KubernetesApi
) -> None:
    server.is_away = True
    with pytest.raises(ApiError, match="the API server did not answer") as caught:
        await api.get(PODS, "a")
    assert (caught.value.status, caught.value.is_final) == (0, False)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        access = ClusterAccess(f"http://127.0.0.1:{closed.getsockname()[1]}", Credentials())
        async with KubernetesApi(access) as nowhere:
            with pytest.raises(ApiError, match="the API server did not answer"):
                await nowhere.get(PODS, "a")


async def test_request_after_the_end_is_an_error_without_status(
    server: ApiServer, api: KubernetesApi
) -> None:
    await api.create(PODS, pod("a"))
    await api.close()
    with pytest.raises(ApiError, match="the connections are closed") as caught:
        await api.get(PODS, "a")
    assert caught.value.status == 0
    assert (await Watch(api, "1").error()).status == 0


async def test_rotated_token_is_used_over_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.renew("127.0.0.1", HOST)
    tls = _server_tls(certificates)
    token = tmp_path / "token"
    token.write_text("first")
    async with open_server(tls) as server:
        server.token = "first"
        server.put(PODS, pod("a"))
        credentials = Credentials(authority=certificates.authority, token=token)
        access = ClusterAccess(server.url, credentials, server_name=HOST)
        async with KubernetesApi(access) as api:
            assert (await api.get(PODS, "a"))["metadata"]["name"] == "a"
            server.token = "second"
            with pytest.raises(ApiError) as caught:
                await api.get(PODS, "a")
            assert (caught.value.status, caught.value.is_final) == (401, False)
            fresh = tmp_path / "fresh"
            fresh.write_text("second")
            os.replace(fresh, token)
            assert (await api.get(PODS, "a"))["metadata"]["name"] == "a"


async def test_server_of_another_authority_is_refused(tmp_path: Path) -> None:
    server_side, other = Certificates(tmp_path / "one"), Certificates(tmp_path / "two")
    server_side.renew(HOST)
    other.renew(HOST)
    async with open_server(_server_tls(server_side)) as server:
        credentials = Credentials(authority=other.authority)
        access = ClusterAccess(server.url, credentials, server_name=HOST)
        async with KubernetesApi(access) as api:
            with pytest.raises(ApiError, match="the certificate of the API server is refused"):
                await api.get(PODS, "a")
        assert not server.requests


def _server_tls(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert, certificates.key)
    return context
