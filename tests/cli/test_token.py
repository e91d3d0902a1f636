from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pyservice.cli import admin_requests
from pyservice.timestamps import rfc3339
from tests.support.data_plane_service import GAME, MakeService, Service, document, version
from tests.support.namespace_configurations import OTHER_NAMESPACE_ID
from tests.support.waiting import until

REGIONS = "/matchmaker/regions"
WRONG = {"actions": {"join": {"enabled": True, "verification": {"url": "http://127.0.0.1/ask"}}}}


def _feed(service: Service, **namespaces: dict[str, object]) -> None:
    """Writes the namespaces prod and staging with these changes, and waits until a new start rejects
    one. SIGHUP rejects the whole file.
    """
    service.stop()
    staging = document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging")
    prod = service.feed | namespaces.get("prod", {})
    feed = {"namespaces": [prod, staging | namespaces.get("staging", {})]}
    service.feed_file.write_text(json.dumps(feed))
    service.start()
    until(lambda: "verification_allowed_networks" in service.probe("/readyz?verbose").text)


def _create(service: Service, namespace: str) -> tuple[int, str, str]:
    result = service.command("token", "create", "--kind", "environment", "--namespace", namespace)
    return result.returncode, result.stdout.strip(), result.stderr


@pytest.mark.full
def test_rejected_namespace_does_not_block_another(make_service: MakeService) -> None:
    service = make_service().start()
    _feed(service, staging={"revision": 2, "versions": [version(duel=WRONG)]})
    for _ in range(2):
        code, token, message = _create(service, f"{GAME}/prod")
        assert (code, message) == (0, "")
        assert service.good("GET", REGIONS, None, token)
    [prod, staging] = json.loads(service.feed_file.read_text())["namespaces"]
    assert (prod["revision"], staging["revision"]) == (3, 2)
    assert len(prod["environment_tokens"]) == 3
    assert "refused" not in message


@pytest.mark.full
def test_feed_token_expires_at_its_time(make_service: MakeService) -> None:
    service = make_service().start()
    words = ("token", "create", "--kind", "environment", "--namespace", f"{GAME}/prod", "--json")
    tokens = [
        json.loads(service.command(*words, "--expires-in", duration).stdout)
        for duration in ("12h", "1s")
    ]
    rests = [
        datetime.fromisoformat(one["expires_ts"]) - datetime.now(UTC) - timedelta(hours=12)
        for one in tokens
    ]
    assert timedelta(minutes=-1) < rests[0] < timedelta()
    assert rests[1] < timedelta(hours=-11)
    [prod] = json.loads(service.feed_file.read_text())["namespaces"]
    expiries = {one["token_id"]: one["expires_ms"] for one in prod["environment_tokens"][1:]}
    assert {token_id: rfc3339(time_ms) for token_id, time_ms in expiries.items()} == {
        one["token_id"]: one["expires_ts"] for one in tokens
    }
    assert service.good("GET", REGIONS, None, tokens[0]["token"])
    until(lambda: service.ask("GET", REGIONS, None, tokens[1]["token"]).status_code == 401)
    refusal = service.ask("GET", REGIONS, None, tokens[1]["token"])
    assert refusal.json()["code"] == "TOKEN_EXPIRED"
    public = ("token", "create", "--kind", "public", "--namespace", f"{GAME}/prod")
    result = service.command(*public, "--expires-in", "12h")
    assert (result.returncode, result.stdout) == (1, "")
    assert "until it is revoked" in result.stderr


@pytest.mark.parametrize(
    "duration", ["", "30", "d", "0d", "-1d", "1.5h", "1w", "30 d", "30D", "\u0663d", "1d1h", "1d\n"]
)
def test_malformed_time_to_live_is_rejected(
    duration: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        admin_requests.create_namespace_token(
            tmp_path, "me", "environment", f"{GAME}/prod", duration, False
        )
        == 1
    )
    assert "such as 30d or 12h" in capsys.readouterr().err
    assert admin_requests.create_cloud_token(tmp_path, "me", None, GAME, None, duration, False) == 1
    assert "such as 30d or 12h" in capsys.readouterr().err


def test_rejected_namespace_gets_no_token(make_service: MakeService) -> None:
    service = make_service().start()
    _feed(
        service,
        prod={"revision": 2, "versions": [version(duel=WRONG)]},
        staging={"revision": 2, "versions": [version(duel=WRONG)]},
    )
    before = service.feed_file.read_bytes()
    for _ in range(2):
        code, token, message = _create(service, f"{GAME}/prod")
        assert (code, token) == (1, "")
        assert "arena/prod: versions.0.matchmaker.game_modes.duel.actions.join" in message
        assert "staging" not in message
        assert service.feed_file.read_bytes() == before
    [stored_file] = (service.data_dir / "feed").glob(f"{service.feed['namespace_id']}*")
    good = hashlib.sha256(service.service_token.encode()).digest()
    assert stored_file.read_bytes().count(good) == 1
    assert service.good("GET", REGIONS, None, service.service_token)
