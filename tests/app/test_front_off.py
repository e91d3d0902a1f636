"""The service without the front: each plane serves its operations at a port of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.support.loopback import FREE_PORT
from tests.support.supervised_service import SupervisedService, until
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedService]:
    settings = {"front": "off", "control_http": FREE_PORT}
    service = SupervisedService(tmp_path_factory.mktemp("off"), settings)
    service.start()
    yield service
    service.close()


def cloud(service: SupervisedService) -> httpx.Client:
    ready = service.ready()
    token = Path(ready["cloud_token_file"]).read_text().strip()
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"http://{ready['control_http']}", headers=headers, timeout=30)


def test_players_are_served_at_the_http_address(service: SupervisedService) -> None:
    headers = {"authorization": f"Bearer {service.public_token()}"}
    url = f"http://{service.addresses['http']}"
    response = httpx.get(f"{url}/matchmaker/lobbies/list", headers=headers, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    assert "openapi" in httpx.get(f"{url}/openapi.json", timeout=PATIENCE_S).json()
    assert response.headers.keys().isdisjoint({"x-hosting-code", "x-hosting-park"})


def test_players_are_served_at_the_grpc_address(service: SupervisedService) -> None:
    metadata = (("authorization", f"Bearer {service.public_token()}"),)
    with grpc.insecure_channel(service.addresses["grpc"]) as channel:
        call = channel.unary_unary(
            "/hosting.v1.Matchmaker/ListRegions",
            request_serializer=pb.ListRegionsRequest.SerializeToString,
            response_deserializer=pb.ListRegionsResponse.FromString,
        )
        response = call(pb.ListRegionsRequest(), metadata=metadata, timeout=PATIENCE_S)
    assert [region.region_id for region in response.regions] == ["local"]


def test_developers_are_served_at_the_control_plane_address(service: SupervisedService) -> None:
    group = service.ready()["owner_group_id"]
    with cloud(service) as client:
        assert client.get(f"/cloud/groups/{group}").status_code == 200
        refusal = client.get("/matchmaker/regions")
    assert (refusal.status_code, refusal.json()["code"]) == (404, "NOT_FOUND")
    assert "other plane" in refusal.json()["detail"]


def test_watch_returns_the_next_change(service: SupervisedService) -> None:
    answers: list[httpx.Response] = []
    group = service.ready()["owner_group_id"]
    path = "/cloud/games"
    with cloud(service) as client:
        index = client.get(path).json()["watch"]["index"]

        def watch() -> None:
            answers.append(client.get(path, params={"watch_index": index}))

        watching = threading.Thread(target=watch)
        watching.start()
        body = {"name_id": "watched", "display_name": "Watched", "developer_group_id": group}
        created = client.post("/cloud/games", json=body)
        assert created.status_code == 200, created.text
        watching.join(30)
    assert answers[0].status_code == 200
    assert answers[0].json()["watch"]["index"] != index


def test_log_warns_that_the_front_is_off(service: SupervisedService) -> None:
    def warnings() -> list[str]:
        lines = (service.folder / "log").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return [event["event"] for event in events if "the front is off" in event["event"]]

    assert until(warnings) == [
        "the front is off: this is for development and not for the public internet"
    ]
