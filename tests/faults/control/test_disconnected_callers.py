"""A caller that disconnects during the commit of its change: the change is made and watches receive
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from pyservice.cli.admin_requests import control_socket
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as admin
from pyservice.rpc import InternalClient
from pyservice.timestamps import now_ms
from tests.faults.control.blocked_commits import BlockedCommitsService
from tests.faults.control.blocked_commits import full_service as full_service
from tests.support.full_service import Developer, GrpcClient, ServiceClient, eventually
from tests.support.upload_files import png, put
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

READS: Final = 5
ATTEMPTS: Final = 4
MADE_S: Final = 2.0
_ADMIN: Final = "hosting.internal.v1.ControlAdmin"


@dataclass
class Watched:
    change: Callable[[], Awaitable[Any]]
    read: Callable[..., Awaitable[Any]]
    is_there: Callable[[Any], bool]


class CallerFixture:
    def __init__(self, full_service: BlockedCommitsService, caller: ServiceClient) -> None:
        self.full_service = full_service
        self.developer = Developer(full_service, full_service.client("http"))
        self.caller = Developer(full_service, caller)
        self.admin = InternalClient(control_socket(full_service.data_dir))

    async def close(self) -> None:
        for client in (self.developer.client, self.caller.client, self.admin):
            await client.close()

    async def picture(self, kind: str) -> Watched:
        namespace_fields = {"game_id": await self.developer.game()}
        response = await self.developer.good(
            f"prepare_{kind}", **namespace_fields, path="x.png", content_length=len(png())
        )
        assert (await put(response["presigned_request"], png())).status_code == 200
        upload_id = response["upload_id"]
        return Watched(
            lambda: self.caller.good(f"complete_{kind}", **namespace_fields, upload_id=upload_id),
            lambda **more: self.developer.good("get_game", **namespace_fields, **more),
            lambda body: f"{kind}_url" in body["game"],
        )

    async def picture_upload(self) -> Watched:
        watched = await self.picture("logo")
        namespace_fields = {"game_id": await self.developer.game()}
        response = await self.developer.good(
            "prepare_logo", **namespace_fields, path="x.png", content_length=len(png())
        )
        assert (await put(response["presigned_request"], png())).status_code == 200
        watched.change = lambda: self.caller.good(
            "complete_upload", upload_id=response["upload_id"]
        )
        watched.read = lambda **more: self.developer.good("get_game", **namespace_fields, **more)
        return watched

    async def device_link(self) -> Watched:
        game_id = await self.developer.game()
        link = (await self.developer.good("prepare_device_link"))["device_link_token"]
        fields = {"device_link_token": link}
        return Watched(
            lambda: self.caller.good("complete_device_link", **fields, game_id=game_id),
            lambda **more: self.developer.good("get_device_link", **fields, **more),
            lambda body: "cloud_token" in body,
        )

    async def billing(self) -> Watched:
        group_id, time_ms = self.full_service.group_id, now_ms()
        request = admin.RecordBillingRequest(
            group_id=group_id, event=admin.BILLING_EVENT_PAYMENT_FAILED, ts_ms=time_ms
        )
        return Watched(
            lambda: self.admin.call(f"{_ADMIN}.RecordBilling", request, 60),
            lambda **more: self.developer.good("get_billing", group_id=group_id, **more),
            lambda body: "payment_failed_ts" in body["group"],
        )

    async def member(self) -> Watched:
        person = await self.admin.call(
            f"{_ADMIN}.CreateIdentity", admin.CreateIdentityRequest(display_name="Somebody")
        )
        identity_id = person.identity_id
        token = await self.admin.call(
            f"{_ADMIN}.CreateCloudToken",
            admin.CreateCloudTokenRequest(all_groups=True, identity_id=identity_id),
        )
        them = Developer(self.full_service, self.developer.client, token.token)
        request = admin.AddMemberRequest(
            group_id=self.full_service.group_id, identity_id=identity_id
        )
        return Watched(
            lambda: self.admin.call(f"{_ADMIN}.AddMember", request, 60),
            lambda **more: them.good("get_games", **more),
            lambda body: bool(body["groups"]),
        )

    async def group(self) -> Watched:
        request = admin.AdminCreateGroupRequest(display_name="Group")
        before = len((await self.developer.good("get_games"))["groups"])
        return Watched(
            lambda: self.admin.call(f"{_ADMIN}.AdminCreateGroup", request, 60),
            lambda **more: self.developer.good("get_games", **more),
            lambda body: len(body["groups"]) > before,
        )

    async def request_and_disconnect(self, watched: Watched) -> None:
        with self.full_service.block_commits() as stalled:
            asking = asyncio.ensure_future(watched.change())

            async def is_on_its_way() -> bool:
                return stalled.waiting > 0

            await eventually(is_on_its_way)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            # A later read proves that the plane has received the request.
            for _ in range(READS):
                await watched.read()


@pytest.fixture(params=["http", "grpc"])
async def fixture(
    request: pytest.FixtureRequest, full_service: BlockedCommitsService
) -> AsyncIterator[CallerFixture]:
    fixture = CallerFixture(full_service, full_service.client(request.param))
    yield fixture
    await fixture.close()


@pytest.fixture
async def inside(full_service: BlockedCommitsService) -> AsyncIterator[CallerFixture]:
    inside = CallerFixture(
        full_service, GrpcClient(f"unix:{control_socket(full_service.data_dir)}")
    )
    yield inside
    await inside.close()


async def resume(fixture: CallerFixture, watched: Watched) -> None:
    before = await watched.read()
    assert not watched.is_there(before)
    index = before["watch"]["index"]
    waiting_task = asyncio.ensure_future(watched.read(watch_index=index))
    for _ in range(ATTEMPTS):
        await fixture.request_and_disconnect(watched)
        if await is_made(watched):
            break
    after = await asyncio.wait_for(waiting_task, PATIENCE_S)
    assert watched.is_there(after), after


async def is_made(watched: Watched) -> bool:
    end = time.monotonic() + MADE_S
    while time.monotonic() < end:
        if watched.is_there(await watched.read()):
            return True
    return False


@pytest.mark.parametrize("kind", ["banner", "logo"])
async def test_game_picture_of_a_gone_caller_is_seen_by_watchers(
    fixture: CallerFixture, kind: str
) -> None:
    await resume(fixture, await fixture.picture(kind))


async def test_picture_upload_of_a_gone_caller_is_seen_by_watchers(inside: CallerFixture) -> None:
    await resume(inside, await inside.picture_upload())


async def test_device_link_of_a_gone_caller_gets_its_token(fixture: CallerFixture) -> None:
    await resume(fixture, await fixture.device_link())


@pytest.mark.parametrize("command", ["billing", "member", "group"])
async def test_change_of_a_cancelled_command_is_seen_by_watchers(
    inside: CallerFixture, command: str
) -> None:
    await resume(inside, await getattr(inside, command)())
