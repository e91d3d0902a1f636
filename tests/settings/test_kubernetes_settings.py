"""Settings for game servers on Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyservice.settings import SettingsError, load
from pyservice.settings.kubernetes_section import CERTIFICATE_FILES, RegionNodes, Toleration

IMAGE = "registry.example.com:5000/hosting/runner:1.0"
PINNED = f"hosting/service@sha256:{'0a' * 32}"
API = "http://hosting.hosting.svc:8080"


@pytest.fixture
def required(tmp_path: Path) -> dict[str, Any]:
    """Returns the section `kubernetes` with its required settings."""
    for name in CERTIFICATE_FILES:
        (tmp_path / name).touch()
    return {"runner_image": IMAGE, "service_image": PINNED, "certificates": str(tmp_path)}


def flags(kubernetes: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {
        "runtime": {"placement": "kubernetes"},
        "lobby_api_url": API,
        "kubernetes": kubernetes,
        **others,
    }


def problems_of(values: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        load(values, environ={})
    return {problem.name: problem.message for problem in caught.value.problems}


def test_required_settings_suffice(required: dict[str, Any]) -> None:
    settings = load(flags(required), environ={})
    assert settings.kubernetes.runner_image == IMAGE
    assert str(settings.public_ports) == "26000-29999"


def test_every_missing_setting_is_reported_with_its_remedy() -> None:
    problems = problems_of({"runtime": {"placement": "kubernetes", "kinds": "oci_bundle"}})
    assert list(problems) == [
        "runtime.kinds",
        "lobby_api_url",
        "kubernetes.runner_image",
        "kubernetes.service_image",
        "kubernetes.certificates",
    ]
    assert all(
        message.startswith("must be set beside runtime.placement kubernetes: give ")
        for name, message in problems.items()
        if name != "runtime.kinds"
    )
    assert problems["runtime.kinds"].endswith("remove them")


def test_host_names_of_ports_are_refused(required: dict[str, Any]) -> None:
    domains = {"job": "play.example.com"}
    edge = {"http": "0.0.0.0:80", "https": "0.0.0.0:443", "is_fronted": True}
    problems = problems_of(flags(required, domains=domains, edge=edge))
    assert "does not say which node serves the port" in problems["domains.job"]


@pytest.mark.parametrize("name", ["http", "https"])
def test_nodes_serve_no_port_by_host_name(required: dict[str, Any], name: str) -> None:
    problems = problems_of(flags(required, edge={name: "0.0.0.0:443", "is_fronted": True}))
    assert problems[f"edge.{name}"].endswith("at its node and no host name: remove it")


def test_local_placement_needs_none_of_them() -> None:
    settings = load({"kubernetes": {"node_ports": "27000-27999"}}, environ={})
    assert str(settings.public_ports) == "26000-31999"


def test_unreadable_files_are_reported(required: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tls.key").unlink()
    required["kubeconfig"] = str(tmp_path / "none")
    assert problems_of(flags(required)) == {
        "kubernetes.kubeconfig": f"{tmp_path}/none cannot be read: No such file or directory",
        "kubernetes.certificates": f"{tmp_path}/tls.key cannot be read: No such file or directory",
    }


def test_regions_have_nodes(required: dict[str, Any]) -> None:
    required["regions"] = [
        {
            "region": "local",
            "node_selector": {"example.com/pool": "games"},
            "tolerations": [{"key": "games", "effect": "NoSchedule"}],
        }
    ]
    settings = load(flags(required), environ={})
    assert settings.kubernetes.regions == (
        RegionNodes(
            region="local",
            node_selector={"example.com/pool": "games"},
            tolerations=(Toleration(key="games", effect="NoSchedule"),),
        ),
    )


def test_groups_have_pull_secrets(required: dict[str, Any]) -> None:
    secrets = '{"00000000-0000-4000-8000-000000000001": ["team", "shared"]}'
    environ = {"PYSERVICE_KUBERNETES__GROUP_PULL_SECRETS": secrets}
    settings = load(flags(required), environ=environ)
    assert settings.kubernetes.group_pull_secrets == {
        "00000000-0000-4000-8000-000000000001": ("team", "shared")
    }


def test_unknown_region_is_named(required: dict[str, Any]) -> None:
    required["regions"] = [{"region": "mars"}]
    assert problems_of(flags(required)) == {
        "kubernetes.regions.0.region": "mars is not in regions: add it there, or correct it"
    }


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("runner_image", "two words", "must be the reference of an image"),
        ("service_image", f"hosting@sha256:{'0a' * 31}", "must be the reference of an image"),
        ("namespace", "Games", "String should match pattern"),
        ("node_ports", "30000-30010", "has 11 ports: give at least 100"),
        ("regions", [{"region": "local"}, {"region": "local"}], "occurs more than once"),
        ("regions", [{"region": "local", "node_selector": {"-": "a"}}], "is not the name of a"),
        ("regions", [{"region": "local", "node_selector": {"a": "?"}}], "is not the value of a"),
        ("group_pull_secrets", {"Team": ["team"]}, "'Team' is not the id of a developer group"),
        ("group_pull_secrets", ["team"], "should be a valid dictionary"),
        ("pending_ms", 1, "should be greater than or equal to 1000"),
        ("drain_ms", -1, "should be greater than or equal to 0"),
    ],
)
def test_invalid_value_is_refused(
    name: str, value: object, reason: str, required: dict[str, Any]
) -> None:
    [message] = problems_of(flags({**required, name: value})).values()
    assert reason in message
