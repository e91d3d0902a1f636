from __future__ import annotations

import concurrent.futures
import functools
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.support.data_plane_service import GAME, MakeService, Service, document, version
from tests.support.waiting import PATIENCE_S, until, within

pytestmark = pytest.mark.full

FIND = "/matchmaker/lobbies/find"
JOIN = "/matchmaker/lobbies/join"
CONNECTED = "/matchmaker/players/connected"
DISCONNECTED = "/matchmaker/players/disconnected"


def _metric(service: Service, name: str) -> float:
    for line in service.probe("/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("quiet")).start()
    yield service
    service.close()


@pytest.mark.fast
def test_player_joins_a_new_service(service: Service) -> None:
    public = service.public_token()
    lobby_id, lobby_token = service.attach()
    placement = service.good("POST", FIND, {"game_modes": ["duel"]}, public)
    assert placement["lobby"]["lobby_id"] == lobby_id
    assert placement["ports"]["game"] == {
        "host": "127.0.0.1:4000",
        "hostname": "127.0.0.1",
        "port": 4000,
        "port_range": None,
        "is_tls": False,
    }
    joined = service.good("POST", JOIN, {"lobby_id": lobby_id}, public)
    for answer in (placement, joined):
        body = {"player_token": answer["player"]["token"]}
        assert service.good("POST", CONNECTED, body, lobby_token) == {}
        assert service.code("POST", CONNECTED, body, lobby_token) == "PLAYER_TOKEN_CONSUMED"
    assert service.find(public).json()["code"] == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    player = {"player_token": placement["player"]["token"]}
    assert service.good("POST", DISCONNECTED, player, lobby_token) == {}
    assert service.find(public).status_code == 200


@pytest.mark.fast
def test_acknowledged_changes_survive_kill_9(service: Service) -> None:
    public = service.public_token()
    lobby_id, lobby_token = service.attach("party")
    reserved = service.find(public, "party").json()["player"]["token"]
    playing = service.find(public, "party").json()["player"]["token"]
    assert service.connected(lobby_token, playing).status_code == 200
    service.kill()
    service.start()
    assert service.connected(lobby_token, reserved).status_code == 200
    assert service.connected(lobby_token, playing).json()["code"] == "PLAYER_TOKEN_CONSUMED"
    assert service.find(public, "party").json()["lobby"]["lobby_id"] == lobby_id
    statistics = service.good("GET", "/matchmaker/players/statistics", None, public)
    assert statistics["player_count"] == 2


def test_configuration_survives_the_loss_of_its_source(service: Service) -> None:
    public = service.public_token()
    service.attach()
    assert service.stop() == 0
    service.feed_file.write_text("nonsense")
    service.start()
    assert service.find(public).status_code == 200
    assert "is not JSON" in service.probe("/readyz?verbose").text


def test_occupied_port_is_reported(make_service: MakeService) -> None:
    service = make_service()
    with socket.create_server(("127.0.0.1", 0)) as listener_socket:
        address = f"127.0.0.1:{listener_socket.getsockname()[1]}"
        for listener in ("http", "grpc", "metrics"):
            service.addresses = {listener: address}
            assert service.spawn().wait(PATIENCE_S) == 1
            assert f"listen on {address}" in service.log()
            assert "died" not in service.log()


@pytest.mark.fast
def test_ready_file_names_every_address(shared_service: Service) -> None:
    ready = json.loads(shared_service.ready_file.read_text())
    assert set(ready) >= {"http", "grpc", "metrics"}
    for name in ("http", "grpc", "metrics"):
        host, port = ready[name].rsplit(":", 1)
        socket.create_connection((host, int(port)), 5).close()
    assert ready["http"] in shared_service.log()


@pytest.mark.fast
def test_data_directory_is_private_to_its_owner(shared_service: Service) -> None:
    assert stat.S_IMODE(shared_service.data_dir.stat().st_mode) == 0o700
    for name in ("keys.json", "admin.sock"):
        assert stat.S_IMODE((shared_service.data_dir / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("service", [{"settings": {"stop_grace_ms": 60_000}}], indirect=True)
def test_sigterm_answers_waiting_finds_and_exits_with_0(service: Service) -> None:
    public = service.public_token()
    service.attach(is_ready=False)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting_request = pool.submit(service.find, public)
        until(lambda: 'state="held"} 1' in service.probe("/metrics").text)
        assert service.stop() == 0
        answer = waiting_request.result()
    assert answer.status_code == 503
    assert answer.json()["code"] == "SHUTTING_DOWN"
    assert not (service.data_dir / "admin.sock").exists()


@pytest.mark.parametrize("service", [{"settings": {"lame_duck_ms": 60_000}}], indirect=True)
def test_lame_duck_serves_but_is_not_ready_and_second_signal_ends_it(service: Service) -> None:
    public = service.public_token()
    service.attach()
    assert service.process is not None
    service.process.send_signal(signal.SIGTERM)
    until(lambda: service.probe("/readyz").status_code == 503)
    assert "stopping" in service.probe("/readyz").text
    assert service.probe("/livez").status_code == 200
    assert service.find(public).status_code == 200
    assert service.process.poll() is None
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(PATIENCE_S) == 0


def test_sighup_reads_the_feed_again(service: Service) -> None:
    public = service.public_token()
    assert service.find(public, "brawl").json()["code"] == "MATCHMAKER_GAME_MODE_NOT_FOUND"
    namespace = json.loads(service.feed_file.read_text())["namespaces"][0]
    namespace |= {"revision": namespace["revision"] + 1, "versions": [version(brawl={})]}
    service.feed_file.write_text(json.dumps({"namespaces": [namespace]}))
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)
    until(lambda: service.find(public, "brawl").json()["code"] == "MATCHMAKER_NO_AVAILABLE_LOBBIES")


def test_sighup_refuses_a_feed_file_that_check_config_refuses(make_service: MakeService) -> None:
    service = make_service()
    service.settings = {}
    config = service.folder / "service.toml"
    config.write_text("[rate_limits.client]\nper_second = 0\n")
    service.start("--config", str(config))
    assert service.process is not None
    public = service.public_token()
    [namespace] = json.loads(service.feed_file.read_text())["namespaces"]
    namespace |= {"revision": namespace["revision"] + 1, "versions": [version(brawl={})]}
    wrong = {**namespace, "namespace_id": str(uuid4()), "name_id": "Not A Name"}
    config.write_text("[rate_limits.client]\nper_second = 0.001\nburst = 1\n")

    for feed, problem in (
        (json.dumps({"namespaces": [namespace, wrong]}), "name_id: must"),
        ("nonsense", "is not JSON"),
    ):
        service.feed_file.write_text(feed)
        checked = service.command("check-config", "--feed", str(service.feed_file))
        assert checked.returncode == 1
        assert problem in checked.stderr
        service.process.send_signal(signal.SIGHUP)
        until(functools.partial(is_refused, service, problem))
        for _ in range(2):
            answer = service.find(public, "brawl").json()
            assert answer["code"] == "MATCHMAKER_GAME_MODE_NOT_FOUND"

    service.feed_file.write_text(json.dumps({"namespaces": [namespace]}))
    service.process.send_signal(signal.SIGHUP)
    until(lambda: service.find(public, "brawl").status_code == 429)


def is_refused(service: Service, problem: str) -> bool:
    lines = [line for line in service.log().splitlines() if "settings not reloaded" in line]
    return any(problem in line for line in lines)


def test_rate_limits_apply_by_default(make_service: MakeService) -> None:
    service = make_service()
    service.settings = {}
    service.start()
    public = service.public_token()
    path = "/matchmaker/regions"
    codes: list[int] = []
    while 429 not in codes and len(codes) < 2_000:
        codes.append(service.ask("GET", path, None, public).status_code)
    assert codes[:100] == [200] * 100
    assert codes[-1] == 429


def test_admin_socket_creates_tokens(service: Service) -> None:
    lobby_id, _ = service.attach()
    tokens = {}
    for kind in ("public", "environment"):
        result = service.command(
            *("token", "create", "--kind", kind, "--namespace", f"{GAME}/prod", "--json")
        )
        assert result.returncode == 0, result.stderr
        tokens[kind] = json.loads(result.stdout)
        assert set(tokens[kind]) == {"token", "token_id"}
        assert service.good("POST", JOIN, {"lobby_id": lobby_id}, tokens[kind]["token"])
    feed = service.feed_file.read_text()
    assert tokens["environment"]["token"] not in feed
    assert tokens["environment"]["token_id"] in feed
    assert json.loads(feed)["namespaces"][0]["revision"] == 2
    for kind in tokens:
        assert tokens[kind]["token"] not in service.log()
    service.kill()
    service.start()
    for kind in tokens:
        assert service.find(tokens[kind]["token"], "party").json()["code"].startswith("MATCHMAKER")


def test_token_for_an_unknown_namespace_is_rejected(shared_service: Service) -> None:
    for kind in ("public", "environment"):
        result = shared_service.command(
            "token", "create", "--kind", kind, "--namespace", "arena/other"
        )
        assert result.returncode == 1
        assert "NAMESPACE_NOT_FOUND" in result.stderr
        assert result.stdout == ""


def test_token_create_distinguishes_a_stopped_service_from_a_wrong_folder(
    make_service: MakeService,
) -> None:
    service = make_service()
    words = ("token", "create", "--kind", "public", "--namespace", f"{GAME}/prod")
    wrong = service.command(*words)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert f"{service.data_dir} is no data directory of a service" in wrong.stderr
    service.start()
    assert service.stop() == 0
    stopped = service.command(*words)
    assert (stopped.returncode, stopped.stdout) == (1, "")
    assert f"the service of {service.data_dir} is stopped" in stopped.stderr


@pytest.mark.fast
def test_probes_report_liveness_and_readiness(shared_service: Service) -> None:
    assert shared_service.probe("/livez").status_code == 200
    shared_service.wait_ready()
    status = shared_service.probe("/readyz?verbose").text
    for part in ("process", "journal", "loop", "credit", "storage", "feed: 1 namespaces"):
        assert part in status
    metrics = shared_service.probe("/metrics").text
    for name in ("hosting_storage_free_bytes", "hosting_compactions_total", "hosting_build_info"):
        assert name in metrics


@pytest.mark.parametrize(
    "service", [{"settings": {"storage_reserve_bytes": 1 << 60}}], indirect=True
)
def test_storage_reserve_is_reported_and_the_service_continues(service: Service) -> None:
    assert "below the reserve" in service.probe("/readyz?verbose").text
    service.wait_ready()
    assert _metric(service, "hosting_storage_free_bytes") < _metric(
        service, "hosting_storage_reserve_bytes"
    )
    service.attach()


@pytest.mark.parametrize(
    "service", [{"settings": {"journal": {"segment_bytes": 1 << 20}}}], indirect=True
)
def test_closed_segments_are_compacted(service: Service) -> None:
    lobby_id, lobby_token = service.attach("party")
    path = "/matchmaker/lobbies/state"
    states = ["x" * 60_000, "y" * 60_000]

    def write() -> bool:
        for state in states * 10:
            service.good("PUT", path, state, lobby_token)
        return _metric(service, "hosting_compactions_total") > 0

    until(write)
    assert _metric(service, "hosting_compaction_failures_total") == 0
    service.kill()
    service.start()
    path = f"/matchmaker/lobbies/{lobby_id}/state"
    assert service.good("GET", path, None, service.service_token) == states[-1]


@pytest.mark.timing
def test_service_is_ready_in_time(make_service: MakeService) -> None:
    service = make_service()
    with within(4):
        service.start()
    assert service.stop() == 0
    with within(2):
        service.start()


def test_removed_namespace_rejects_all_requests(service: Service) -> None:
    public = service.public_token()
    removed = [{"namespace_id": document()["namespace_id"], "revision": 99}]
    service.feed_file.write_text(json.dumps({"removed": removed}))
    assert service.process is not None
    os.kill(service.process.pid, signal.SIGHUP)
    until(lambda: service.find(public).status_code == 401)
    assert service.find(public).json()["code"] == "TOKEN_INVALID"


def test_sighup_reads_rate_limits_again(make_service: MakeService) -> None:
    service = make_service()
    service.settings = {}
    config = service.folder / "service.toml"
    config.write_text("[rate_limits.client]\nper_second = 0.001\nburst = 1\n")
    service.start("--config", str(config))
    public = service.public_token()

    def statuses() -> list[int]:
        path = "/matchmaker/regions"
        return [service.ask("GET", path, None, public).status_code for _ in range(3)]

    assert statuses() == [200, 429, 429]
    config.write_text("[rate_limits.client]\nper_second = 0\n")
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)
    until(lambda: statuses() == [200] * 3)
    assert "changed settings need a restart" not in service.log()
    config.write_text("nonsense = 1\n")
    service.process.send_signal(signal.SIGHUP)
    until(lambda: "settings not reloaded" in service.log())
    assert statuses() == [200] * 3


def test_damaged_feed_file_fails_the_start_with_its_name(service: Service) -> None:
    assert service.stop() == 0
    [path] = (service.data_dir / "feed").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert service.spawn().wait(PATIENCE_S) == 1
    assert path.name in service.log()
    assert not service.ready_file.exists()
