"""`pyservice token create` as a person uses it: a token that is good, or a reason and no trace."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable

from tests.dataplane.configurations import OTHER_NAMESPACE_ID
from tests.service import GAME, MakeService, Service, document, version

REGIONS = "/matchmaker/regions"
WRONG = {"actions": {"join": {"enabled": True, "verification": {"url": "http://127.0.0.1/ask"}}}}


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def _feed(service: Service, **namespaces: dict[str, object]) -> None:
    """Writes prod and staging, each with these changes, and waits until one is refused."""
    staging = document(namespace_id=OTHER_NAMESPACE_ID, name_id="staging")
    prod = service.feed | namespaces.get("prod", {})
    fed = {"namespaces": [prod, staging | namespaces.get("staging", {})]}
    service.feed_file.write_text(json.dumps(fed))
    assert service.process is not None
    os.kill(service.process.pid, signal.SIGHUP)
    _until(lambda: "verification_allowed_networks" in service.probe("/readyz?verbose").text)


def _create(service: Service, namespace: str) -> tuple[int, str, str]:
    done = service.command("token", "create", "--kind", "environment", "--namespace", namespace)
    return done.returncode, done.stdout.strip(), done.stderr


def test_a_refused_namespace_beside_it_is_no_obstacle(make_service: MakeService) -> None:
    service = make_service().start()
    _feed(service, staging={"revision": 2, "versions": [version(duel=WRONG)]})
    for _ in range(2):
        code, token, said = _create(service, f"{GAME}/prod")
        assert (code, said) == (0, "")
        assert service.good("GET", REGIONS, None, token)
    [prod, staging] = json.loads(service.feed_file.read_text())["namespaces"]
    assert (prod["revision"], staging["revision"]) == (3, 2)
    assert len(prod["environment_tokens"]) == 3
    assert "refused" not in said


def test_a_refused_namespace_gets_no_token_and_no_trace_of_one(make_service: MakeService) -> None:
    service = make_service().start()
    _feed(
        service,
        prod={"revision": 2, "versions": [version(duel=WRONG)]},
        staging={"revision": 2, "versions": [version(duel=WRONG)]},
    )
    before = service.feed_file.read_bytes()
    for _ in range(2):
        code, token, said = _create(service, f"{GAME}/prod")
        assert (code, token) == (1, "")
        assert "arena/prod: versions.0.matchmaker.game_modes.duel.actions.join" in said
        assert "staging" not in said
        assert service.feed_file.read_bytes() == before
    [kept] = (service.data_dir / "feed").glob(f"{service.feed['namespace_id']}*")
    good = hashlib.sha256(service.environment_token.encode()).digest()
    assert kept.read_bytes().count(good) == 1
    assert service.good("GET", REGIONS, None, service.environment_token)
