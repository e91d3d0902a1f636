from __future__ import annotations

import json

from tests.support.data_plane_service import MakeService

REGIONS = "/matchmaker/regions"


def test_tokens_stay_valid_after_rotation_and_restart(make_service: MakeService) -> None:
    service = make_service().start()
    before = service.public_token()
    _, lobby_token = service.attach()
    player = service.good("POST", "/matchmaker/lobbies/find", {"game_modes": ["duel"]}, before)
    rotated = service.command("keys", "rotate")
    assert (rotated.returncode, rotated.stdout, rotated.stderr) == (0, "2\n", "")
    after = service.public_token()
    assert service.stop() == 0
    service.start()
    for token in (before, after):
        assert service.good("GET", REGIONS, None, token)
    response = service.connected(lobby_token, player["player"]["token"])
    assert response.status_code == 200, response.text


def test_unused_keys_are_dropped_on_request(make_service: MakeService) -> None:
    service = make_service().start()
    old = service.public_token()
    rotated = service.command("keys", "rotate", "--drop-unused", "--json")
    keys = {"current_key": 2, "kept_keys": [], "dropped_keys": [1]}
    assert json.loads(rotated.stdout) == keys
    assert service.code("GET", REGIONS, None, old) == "TOKEN_INVALID"
    assert service.good("GET", REGIONS, None, service.public_token())
    assert service.good("GET", REGIONS, None, service.service_token)
