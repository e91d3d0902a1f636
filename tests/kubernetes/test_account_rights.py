"""Rights of the service in its cluster: one list, what the chart grants, and what the driver uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from pyservice.kubernetes.account_rights import (
    Right,
    missing_rights,
    needed_rights,
    rights_sentence,
)
from pyservice.kubernetes.api import Collection, KubernetesApi
from pyservice.kubernetes.network_probe import ProbeTargets
from pyservice.settings.kubernetes_section import KubernetesSettings
from tests.kubernetes.run_scene import open_scene
from tests.support.kubernetes_api_server import PODS, ApiServer
from tests.support.tracked_files import ROOT
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

SETTINGS: Final = KubernetesSettings(namespace="games")
RBAC: Final = ROOT / "deploy" / "helm" / "hosting" / "templates" / "rbac.yaml"
VALUES: Final = {".Release.Name": "hosting", ".Values.games.namespace": "games"}


def granted_rights() -> Iterator[Right]:
    """Yields the rights that the chart gives to the account of the service."""
    lines = [line for line in RBAC.read_text().splitlines() if "include" not in line]
    text = re.sub(r"{{ (\S+) }}", lambda found: VALUES.get(found[1], "x"), "\n".join(lines))
    for one in yaml.safe_load_all(text):
        namespace = one["metadata"].get("namespace", "") if one["kind"] == "Role" else ""
        for rule in one.get("rules", ()):
            yield from rights_of(rule, namespace)


def rights_of(rule: dict[str, Any], namespace: str) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        for plural in rule["resources"]:
            collection = Collection(plural, namespace, group)
            for name in rule.get("resourceNames", [""]):
                yield from (Right(verb, collection, name) for verb in rule["verbs"])


def test_chart_grants_the_needed_rights_and_no_others() -> None:
    assert sorted(granted_rights()) == sorted(needed_rights(SETTINGS))


async def test_driver_uses_each_right(server: ApiServer) -> None:
    targets = ProbeTargets("203.0.113.1:8080", "127.0.0.1:1")
    async with open_scene(server, targets=targets) as scene:
        run = await scene.running()
        server.change(PODS, run.id, {"metadata": {"labels": {"hosting/service": None}}})
        await until_met(lambda: server.seen("patch"))
        scene.runs.end(run.id)
        await until_met(lambda: server.seen("delete"))
        server.finish(run.id, 143)
        await scene.gone(run)
        needed = {(one.verb, one.collection.plural) for one in needed_rights(SETTINGS)}
        assert scene.used_rights() == needed


async def test_all_missing_rights_are_named_at_once(server: ApiServer, api: KubernetesApi) -> None:
    assert await missing_rights(api, SETTINGS) == []
    server.forbidden = {("create", "pods"), ("watch", "nodes"), ("get", "configmaps")}
    missing = await missing_rights(api, SETTINGS)
    assert missing == [
        "create pods in namespace games",
        "get configmaps in namespace games",
        "watch nodes",
    ]
    sentence = rights_sentence(missing)
    assert "may not create pods in namespace games, get configmaps" in sentence
