"""Records and keys after a SIGKILL of the service."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.data_plane_service import MakeService, Service

pytestmark = pytest.mark.full

SECRET = "a-secret-that-outlives-it"


def _live(service: Service) -> list[dict[str, Any]]:
    events = service.good("GET", "/events/live", None, SECRET).get("events", [])
    return [event["kind"]["matchmaker_lobby_join"] for event in events]


def test_channel_token_survives_a_kill(make_service: MakeService) -> None:
    service = make_service().start()
    token = service.public_token()
    _, lobby_token = service.attach()
    response = service.find(token, party_size=2, event_channels=[SECRET])
    service.kill()
    assert response.status_code == 200, response.text
    service.start()
    [join] = _live(service)
    assert join["player"] == response.json()["players"][1]
    assert join["ports"] == response.json()["ports"]
    events = service.good("GET", "/events/live", None, SECRET)
    service.kill()
    service.start()
    repeat = service.good("GET", "/events/live", None, SECRET)
    assert repeat["events"] == events["events"]
    connected = service.connected(lobby_token, join["player"]["token"])
    assert connected.status_code == 200, connected.text


def test_rotated_key_survives_a_kill(make_service: MakeService) -> None:
    service = make_service().start()
    before = service.public_token()
    rotated = service.command("keys", "rotate")
    assert rotated.stdout == "2\n", rotated.stderr
    after = service.public_token()
    _, lobby_token = service.attach()
    player = service.find(after).json()["player"]["token"]
    service.kill()
    service.start()
    for token in (before, after):
        assert service.find(token).status_code in (200, 409)
    connected = service.connected(lobby_token, player)
    assert connected.status_code == 200, connected.text
