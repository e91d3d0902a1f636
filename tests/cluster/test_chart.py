"""The chart on a real cluster: rights of its containers, its objects, and wrong values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.rendered_chart import EVERYTHING, VALUES, objects, of_kind, rendered

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_containers_have_no_rights_on_their_nodes(cluster: Cluster, tmp_path: Path) -> None:
    found = objects(VALUES, tmp_path)
    for kind in ("StatefulSet", "DaemonSet"):
        [workload] = of_kind(kind, found)
        [container] = workload["spec"]["template"]["spec"]["containers"]
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False


def test_clients_and_nodes_reach_only_the_first_replica(cluster: Cluster, tmp_path: Path) -> None:
    services = list(of_kind("Service", objects(VALUES, tmp_path)))
    assert len(services) == 2
    for service in services:
        assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "hosting-0"


@pytest.mark.parametrize("values", [VALUES, EVERYTHING], ids=["least", "everything"])
def test_api_server_accepts_the_objects(
    cluster: Cluster, tmp_path: Path, values: dict[str, Any]
) -> None:
    # The API server checks objects of a namespace only if the namespace exists.
    games = {**values.get("games", {}), "createNamespace": False, "namespace": "default"}
    found = objects({**values, "games": games}, tmp_path)
    assert not list(of_kind("Namespace", found))
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": found})
    cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "--filename=-", text=listed)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "/image/service"),
        ({**VALUES, "imgae": {}}, "imgae"),
        ({**VALUES, "node": {"ports": "26000"}}, "/node/ports"),
        ({**VALUES, "games": {"egress": "some"}}, "/games/egress"),
        ({**VALUES, "games": {"pullSecrets": {"group": "team"}}}, "/games/pullSecrets/group"),
        ({**VALUES, "s3": {"bucket": "objects"}}, "s3.existingSecret is missing"),
    ],
)
def test_wrong_values_are_refused(
    cluster: Cluster, tmp_path: Path, values: dict[str, Any], problem: str
) -> None:
    ended = rendered(values, tmp_path)
    assert ended.returncode != 0
    assert problem in ended.stderr
