"""Refusals of the cluster, and Pods changed by hand: each has its sentence, and others go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from pyservice_cli.api import Answer
from pyservice_cli.failures import Refused
from tests.cluster.cluster import Cluster, Object
from tests.cluster.hosted_service import GAMES
from tests.cluster.many_lobbies import SHARED, SMALL, ManyLobbies, id_of, many_lobbies
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE: Final = "hosting-games"
POLICY: Final = "signed-images"
DELETED: Final = "the Pod of this game server was deleted, and not by this service"


@pytest.fixture(scope="module")
def lobbies(
    cluster: Cluster, service_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManyLobbies]:
    with many_lobbies(cluster, service_image, tmp_path_factory.mktemp("hosted")) as lobbies:
        yield lobbies


@contextmanager
def played(lobbies: ManyLobbies) -> Iterator[Answer]:
    """A lobby with a player. The player notices nothing of the block."""
    shared = lobbies.game.find_again(SHARED)
    uid = uid_of(lobbies, shared)
    with lobbies.game.player(shared) as connection:
        yield shared
        connection.sendall(b"still here")
        assert connection.recv(65_536) == b"still here"
        assert uid_of(lobbies, shared) == uid
    lobbies.game.end(id_of(shared))


def pod_of(lobbies: ManyLobbies, found: Answer) -> Object | None:
    return lobbies.cluster.get(f"{GAMES}/{id_of(found)}")


def uid_of(lobbies: ManyLobbies, found: Answer) -> str:
    pod = pod_of(lobbies, found)
    assert pod is not None
    return str(pod["metadata"]["uid"])


def refused_find(lobbies: ManyLobbies) -> str:
    """Finds lobbies until one does not start, and returns the code. A new rule may hold late."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            lobbies.game.end(id_of(lobbies.game.find(SMALL)))
        except Refused as refusal:
            return refusal.code
        assert time.monotonic() < end, "the cluster refuses nothing"


def failed_lobbies(lobbies: ManyLobbies) -> dict[str, Answer]:
    return {
        lobby_id: record
        for lobby_id, record in lobbies.game.records().items()
        if record["state"] == "failed"
    }


def require_refusal(lobbies: ManyLobbies, failure: str, words: str) -> None:
    """Requires that a find fails, with these words in the record of its lobby."""
    before = failed_lobbies(lobbies)
    assert refused_find(lobbies) == "MATCHMAKER_LOBBY_START_FAILED"
    failed = until(lambda: failed_lobbies(lobbies).keys() - before.keys())
    for lobby_id in failed:
        # The reason of the end follows the end.
        record = lobbies.game.record_with_problem(lobby_id)
        assert record["failure"] == failure
        assert words in record["problem"]
        assert lobbies.game.log(lobby_id, "service") == [record["problem"]]
        assert lobbies.cluster.get(f"{GAMES}/{lobby_id}") is None


@contextmanager
def applied(cluster: Cluster, *objects: Object) -> Iterator[None]:
    try:
        cluster.apply(*objects)
        yield
    finally:
        for one in objects:
            namespace = one["metadata"].get("namespace", "default")
            name = f"{one['kind'].lower()}/{one['metadata']['name']}"
            cluster.kubectl("delete", f"--namespace={namespace}", "--ignore-not-found", name)


def require_starts_again(lobbies: ManyLobbies) -> None:
    found = lobbies.game.find_again(SMALL)
    assert lobbies.game.is_admitted(found)
    lobbies.game.end(id_of(found))


def quota() -> Object:
    metadata = {"name": "full", "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": {"pods": "0"}},
    }


def test_full_quota_is_named(cluster: Cluster, lobbies: ManyLobbies) -> None:
    with cluster.network():
        with played(lobbies), applied(cluster, quota()):
            # The cluster enforces a quota after it has counted.
            path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/full"
            cluster.wait_for(path, lambda found: found.get("status", {}).get("hard"))
            require_refusal(lobbies, "CAPACITY_EXHAUSTED", "exceeded quota: full")
        require_starts_again(lobbies)


def policy() -> list[Object]:
    """Returns an admission policy that refuses all new Pods of the games."""
    pods = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    named = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": POLICY}}
    games = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    validation = {"expression": "false", "message": "images must be signed"}
    return [
        {
            **named,
            "kind": "ValidatingAdmissionPolicy",
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [pods]},
                "validations": [validation],
            },
        },
        {
            **named,
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {
                "policyName": POLICY,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": games},
            },
        },
    ]


def test_refusal_of_an_admission_policy_is_named(cluster: Cluster, lobbies: ManyLobbies) -> None:
    with cluster.network():
        with played(lobbies), applied(cluster, *policy()):
            require_refusal(lobbies, "EXEC_FAILED", "images must be signed")
        require_starts_again(lobbies)


def test_pod_that_is_deleted_by_hand_ends_its_lobby_alone(
    cluster: Cluster, lobbies: ManyLobbies
) -> None:
    game = lobbies.game
    with cluster.network():
        with played(lobbies):
            found = game.find_again(SMALL)
            cluster.kubectl(
                *("delete", "pod", f"--namespace={NAMESPACE}", "--wait=false", id_of(found))
            )
            assert until(lambda: game.record(id_of(found)).get("problem")) == DELETED
            assert not game.is_admitted(found)
            cluster.wait_gone(f"{GAMES}/{id_of(found)}")
        require_starts_again(lobbies)


@pytest.mark.parametrize("change", ["hosting/run-", "hosting/service=other"])
def test_changed_label_is_put_back(cluster: Cluster, lobbies: ManyLobbies, change: str) -> None:
    with cluster.network(), played(lobbies) as shared:
        expected = labels_of(lobbies, shared)
        assert {"hosting/run", "hosting/service"} <= expected.keys()
        path = f"--namespace={NAMESPACE}"
        cluster.kubectl("label", "--overwrite", path, "pod", id_of(shared), change)
        until(lambda: labels_of(lobbies, shared) == expected)
        assert lobbies.game.record(id_of(shared))["state"] == "running"


def labels_of(lobbies: ManyLobbies, found: Answer) -> dict[str, Any]:
    pod = pod_of(lobbies, found)
    assert pod is not None
    return dict(pod["metadata"]["labels"])


def test_killed_edge_guard_serves_again_and_other_nodes_notice_nothing(
    cluster: Cluster, lobbies: ManyLobbies
) -> None:
    game, (quiet, broken) = lobbies.game, cluster.nodes
    with cluster.network():
        lobbies.end_all()
        with only_on(lobbies, quiet):
            shared = game.find_again(SHARED)
        with only_on(lobbies, broken):
            found = game.find_again(SMALL)
        assert lobbies.nodes() == {id_of(shared): quiet, id_of(found): broken}
        with game.player(shared) as connection:
            for pid in edge_guards(lobbies, broken):
                os.kill(pid, signal.SIGKILL)
            until(lambda: game.is_admitted(found))
            connection.sendall(b"still here")
            assert connection.recv(65_536) == b"still here"
        for one in (shared, found):
            assert game.record(id_of(one))["state"] == "running"
        lobbies.end_all()


def edge_guards(lobbies: ManyLobbies, node: str) -> list[int]:
    commands = lobbies.cluster.processes_on(node)
    found = [pid for pid, command in commands.items() if "hosting-edge-guard" in command]
    assert found, commands
    return found


@contextmanager
def only_on(lobbies: ManyLobbies, node: str) -> Iterator[None]:
    """New lobbies start on this node alone."""
    others = [one for one in lobbies.cluster.nodes if one != node]
    for other in others:
        lobbies.cluster.kubectl("cordon", other)
    try:
        yield
    finally:
        for other in others:
            lobbies.cluster.kubectl("uncordon", other)


def test_second_replica_is_refused(cluster: Cluster, lobbies: ManyLobbies) -> None:
    scale = ("scale", "statefulset", "hosting")
    with cluster.network(), played(lobbies):
        with pytest.raises(AssertionError, match="the service runs in one Pod"):
            lobbies.hosted.kubectl(*scale, "--replicas=2")
        lobbies.hosted.kubectl(*scale, "--replicas=1")
        assert cluster.get(f"{lobbies.hosted.pods}/hosting-1") is None
