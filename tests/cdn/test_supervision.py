"""The CDN in a process of its own. Its load and its end affect neither the API nor other planes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pyservice.process.directory_lock import lock_holder_pid
from tests.support.command_line import run
from tests.support.full_service import Developer, FullService, running
from tests.support.supervised_service import is_gone, processes_of, until
from tests.support.upload_files import put_all
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.full, pytest.mark.timeout(180)]

FILES = {"index.html": b"<h1>page</h1>"}


@dataclass
class SiteOwner:
    service: FullService
    developer: Developer
    browser: httpx.AsyncClient
    path: str = ""

    def cdn_pid(self) -> int:
        return lock_holder_pid(self.service.data_dir / "control/cdn") or 0

    async def new_cdn_pid(self, before: int) -> int:
        async def other() -> int:
            pid = self.cdn_pid()
            return pid if pid != before and not is_gone(pid) else 0

        return int(await eventually(other))

    async def publish(self) -> None:
        developer = self.developer
        game_id = await developer.game()
        files = [{"path": path, "content_length": len(file)} for path, file in FILES.items()]
        site = await developer.good("create_site", game_id=game_id, display_name="x", files=files)
        await put_all(site["presigned_requests"], FILES)
        await developer.good("complete_upload", upload_id=site["upload_id"])
        version_id = await developer.version(game_id, {"cdn": {"site_id": site["site_id"]}})
        target = {"game_id": game_id, "namespace_id": "prod"}
        await developer.good("set_version", **target, version_id=version_id)
        self.path = (await developer.good("get_game", game_id=game_id))["game"]["name_id"]
        await eventually(self.is_shown)

    async def is_shown(self) -> bool:
        response = await self.browser.get(f"/{self.path}/prod/")
        return response.status_code == 200 and response.content == FILES["index.html"]

    async def scrape(self) -> str:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            return (await client.get(f"http://{self.service.ready['metrics']}/metrics")).text


@pytest.fixture
async def site_owner(tmp_path: Path) -> AsyncIterator[SiteOwner]:
    with running(FullService(tmp_path / "s")) as service:
        async with (
            service.open_client("http") as client,
            httpx.AsyncClient(
                base_url=f"http://{service.ready['cdn']}", timeout=PATIENCE_S
            ) as browser,
        ):
            owner = SiteOwner(service, Developer(service, client), browser)
            await owner.publish()
            yield owner


async def test_killed_cdn_restarts_and_no_request_fails(site_owner: SiteOwner) -> None:
    service, before = site_owner.service, site_owner.cdn_pid()
    control = service.control_pid()
    os.kill(before, signal.SIGKILL)
    # These requests wait at the listening socket for the next process.
    fresh = [
        httpx.AsyncClient(base_url=site_owner.browser.base_url, timeout=PATIENCE_S)
        for _ in range(5)
    ]
    try:
        responses = await asyncio.gather(
            *(one.get(f"/{site_owner.path}/prod/", timeout=PATIENCE_S) for one in fresh)
        )
    finally:
        for one in fresh:
            await one.aclose()
    assert {response.content for response in responses} == {FILES["index.html"]}
    assert await site_owner.new_cdn_pid(before) != before
    assert service.control_pid() == control
    assert '"event": "cdn exited"' in service.log()


async def test_stalled_cdn_delays_no_other_operation(site_owner: SiteOwner) -> None:
    async def is_up(expected: int) -> bool:
        return f"hosting_control_cdn_up {expected}\n" in await site_owner.scrape()

    await eventually(lambda: is_up(1))
    text = await site_owner.scrape()
    assert 'hosting_control_cdn_answers_total{status_class="2xx"}' in text
    assert "hosting_cdn_process_resident_memory_bytes" in text
    pid = site_owner.cdn_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        page = asyncio.create_task(site_owner.is_shown())
        developer = site_owner.developer
        game_id = await developer.game()
        await developer.version(game_id)
        await eventually(lambda: is_up(0))
        assert "hosting_control_plane_up 1\n" in await site_owner.scrape()
        assert not page.done()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert await page
    assert site_owner.cdn_pid() == pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to drop")
async def test_cdn_of_root_serves_sites_with_the_right_to_files_alone(
    site_owner: SiteOwner,
) -> None:
    tasks = Path(f"/proc/{site_owner.cdn_pid()}/task").glob("*/status")
    statuses = [dict(line.split(":\t") for line in one.read_text().splitlines()) for one in tasks]
    rights = {one[name] for one in statuses for name in ("CapPrm", "CapEff", "CapInh", "CapBnd")}
    assert {int(one, 16) for one in rights} == {0, 1 << 1}
    assert await site_owner.is_shown()


async def test_status_shows_a_stalled_cdn(site_owner: SiteOwner) -> None:
    async def is_shown(exit_status: int, line: str) -> bool:
        status = await asyncio.to_thread(run, site_owner.service.data_dir, "status")
        return status.returncode == exit_status and f"\n{line}\n" in status.stdout

    await eventually(lambda: is_shown(0, "cdn: up"))
    pid = site_owner.cdn_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        await eventually(lambda: is_shown(1, "cdn: down, does not answer; sites and uploads fail"))
    finally:
        os.kill(pid, signal.SIGCONT)
    await eventually(lambda: is_shown(0, "cdn: up"))


async def test_cdn_ends_with_its_control_plane(site_owner: SiteOwner) -> None:
    service, before = site_owner.service, site_owner.cdn_pid()
    os.kill(service.control_pid(), signal.SIGKILL)
    until(lambda: is_gone(before))

    async def is_served() -> bool:
        try:
            return await site_owner.is_shown()
        except httpx.TransportError:
            # Until the new control plane listens, connections are refused.
            return False

    await eventually(is_served)
    assert site_owner.cdn_pid() != before
    assert service.stop() == 0
    assert not processes_of(service.data_dir)


async def test_new_signing_key_is_valid_at_once(site_owner: SiteOwner) -> None:
    developer = site_owner.developer
    for _ in range(2):
        rotated = await asyncio.to_thread(run, site_owner.service.data_dir, "keys", "rotate")
        assert rotated.returncode == 0, rotated.stderr
        game_id = await developer.game()
        files = [{"path": path, "content_length": len(file)} for path, file in FILES.items()]
        site = await developer.good("create_site", game_id=game_id, display_name="x", files=files)
        await put_all(site["presigned_requests"], FILES)
