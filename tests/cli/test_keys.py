from __future__ import annotations

import json

import pytest

from tests.support.data_plane_service import MakeService

REGIONS = "/matchmaker/regions"


@pytest.mark.full
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


@pytest.mark.full
def test_leaked_key_is_dropped_without_its_replacement(make_service: MakeService) -> None:
    service = make_service().start()
    older = service.public_token()
    assert service.command("keys", "rotate").stdout == "2\n"
    leaked = service.public_token()
    assert service.command("keys", "rotate").stdout == "3\n"
    replacement = service.public_token()
    _, lobby_token = service.attach()

    refused = service.command("keys", "drop", "2", "3")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        "pyservice keys: IN_USE: Key 3 signs new tokens. No key was dropped."
    )
    assert service.good("GET", REGIONS, None, leaked)

    dropped = service.command("keys", "drop", "2")
    report = "Dropped: 2\nStill valid: 1, 3\nSigns new tokens: 3\n"
    assert (dropped.returncode, dropped.stdout, dropped.stderr) == (0, report, "")
    for _ in range(2):
        assert service.code("GET", REGIONS, None, leaked) == "TOKEN_INVALID"
        for token in (older, replacement):
            player = service.find(token).json()["player"]["token"]
            response = service.connected(lobby_token, player)
            assert response.status_code == 200, response.text
            service.good(
                "POST", "/matchmaker/players/disconnected", {"player_token": player}, lobby_token
            )
        service.kill()
        service.start()

    repeated = service.command("keys", "drop", "2")
    assert repeated.stderr.startswith(
        "pyservice keys: VALIDATION_FAILED: There is no key 2. The keys are 1, 3."
    )


def test_unused_keys_are_dropped_on_request(make_service: MakeService) -> None:
    service = make_service().start()
    old = service.public_token()
    rotated = service.command("keys", "rotate", "--drop-unused", "--json")
    keys = {"current_key": 2, "kept_keys": [], "dropped_keys": [1]}
    assert json.loads(rotated.stdout) == keys
    assert service.code("GET", REGIONS, None, old) == "TOKEN_INVALID"
    assert service.good("GET", REGIONS, None, service.public_token())
    assert service.good("GET", REGIONS, None, service.service_token)
