"""Output of the chart, without a cluster: isolation, monitoring, records and objects, uninstallation."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.runtime.network_isolation import Egress, refused_networks
from tests.cluster.rendered_chart import EVERYTHING, VALUES, objects, of_kind, rendered
from tests.support.certificates import Certificates
from tests.support.node_authority import NodeAuthority
from tests.support.service_process import clean_environment
from tests.support.tracked_files import ROOT

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
SECRETS: Final = {
    ("database", "url"): "postgresql://hosting:secret@database.example.com/hosting",
    ("bucket", "access-key-id"): "key",
    ("bucket", "secret-access-key"): "secret",
}
SERVICES: Final = {"$(HOSTING_SERVICE_HOST)": "10.96.0.7"}
METADATA: Final = ("169.254.169.254", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254")


def with_games(**games: Any) -> Object:
    return {**VALUES, "games": games}


def policy_of_games(values: Object, folder: Path) -> Object:
    [policy] = (
        one
        for one in of_kind("NetworkPolicy", objects(values, folder))
        if one["metadata"].get("namespace") == "hosting-games"
    )
    return policy


def reached(policy: Object, address: str, port: int | None = None) -> bool:
    """Returns whether the policy lets a Pod reach an address outside of the cluster, at any port."""
    ip = ipaddress.ip_address(address)
    for rule in policy["spec"]["egress"]:
        ports = [one["port"] for one in rule.get("ports", ())]
        if ports and port not in ports:
            continue
        for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer):
            refused = map(ipaddress.ip_network, block.get("except", ()))
            if ip in ipaddress.ip_network(block["cidr"]) and not any(ip in one for one in refused):
                return True
    return False


def networks_within(egress: Egress) -> Iterator[str]:
    """Yields an address of each network that game servers of a single machine do not reach."""
    for network in map(ipaddress.ip_network, refused_networks(egress)):
        # No packet has a mapped address.
        if not (isinstance(network, ipaddress.IPv6Network) and network[-1].ipv4_mapped):
            yield str(network[-1])


@pytest.mark.parametrize("egress", ["internet", "none", "any"])
def test_refused_networks_are_those_of_a_single_machine(tmp_path: Path, egress: Egress) -> None:
    policy = policy_of_games(with_games(egress=egress), tmp_path)
    assert policy["spec"]["podSelector"] == {}, "also for a Pod that has lost its labels"
    [rule] = policy["spec"]["ingress"]
    [peer] = rule.pop("from")
    assert not rule, "all ports"
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "hosting"}}
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "service"
    for address in (*networks_within(egress), *METADATA):
        assert not reached(policy, address), address
    for address in METADATA:
        assert not reached(policy, address, 8094), address
    is_open = egress != "none"
    assert reached(policy, "8.8.8.8", 8094) == is_open, "archives open no public address"
    assert reached(policy, "8.8.8.8") == reached(policy, "2a00:1450::1") == is_open
    assert reached(policy, "10.96.0.1") == (egress == "any")


def test_networks_can_be_added_and_refused(tmp_path: Path) -> None:
    games = {
        "egressNetworks": ["169.254.20.10/32", "fd00:1::/64"],
        "refusedNetworks": ["198.100.0.0/24", "2a01:4f8::/32"],
        "nodeNetworks": ["198.100.0.0/25"],
    }
    policy = policy_of_games(with_games(**games), tmp_path)
    assert reached(policy, "169.254.20.10")
    assert reached(policy, "fd00:1::5")
    assert not reached(policy, "198.100.0.7")
    assert not reached(policy, "2a01:4f8::7")
    assert reached(policy, "198.100.0.7", 8094), "game servers fetch archives from their node"
    assert not reached(policy, "198.100.0.200", 8094)
    assert not reached(policy, "10.244.1.7", 8094), "the value replaces the private networks"


def test_networks_of_nodes_are_never_all_networks(tmp_path: Path) -> None:
    ended = rendered(with_games(nodeNetworks=[]), tmp_path)
    assert ended.returncode != 0
    assert "nodeNetworks" in ended.stderr


@pytest.mark.parametrize("node", ["10.250.0.11", "100.64.0.11", "172.31.0.11", "192.168.0.11"])
def test_private_nodes_are_reached_for_archives_only(tmp_path: Path, node: str) -> None:
    policy = policy_of_games(with_games(egress="none"), tmp_path)
    assert reached(policy, node, 8094)
    assert not reached(policy, node, 8095)


def test_service_knows_what_the_policies_allow(tmp_path: Path) -> None:
    environment = dict(variables(objects(with_games(egress="none"), tmp_path)))
    assert environment["PYSERVICE_RUNTIME__EGRESS"] == "none"
    assert environment["PYSERVICE_KUBERNETES__POD_ADDRESS"] == "10.244.1.7"


def test_metrics_of_a_node_are_on_its_loopback_address(tmp_path: Path) -> None:
    environment = dict(variables(objects(VALUES, tmp_path), "DaemonSet"))
    assert environment["PYSERVICE_METRICS"] == "127.0.0.1:8095"
    [workload] = of_kind("DaemonSet", objects(VALUES, tmp_path))
    [container] = workload["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["host"] == "127.0.0.1"


def test_pods_of_the_service_are_not_among_the_game_servers(tmp_path: Path) -> None:
    ended = rendered(with_games(namespace="hosting"), tmp_path)
    assert ended.returncode != 0
    assert "games.namespace must not be the namespace of the release" in ended.stderr


def test_monitoring_finds_the_metrics(tmp_path: Path) -> None:
    values = {**VALUES, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}
    found = objects(values, tmp_path)
    [monitor] = of_kind("ServiceMonitor", found)
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    service = monitored_service(monitor, found)
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "hosting", "as in alerts"
    [endpoint] = monitor["spec"]["endpoints"]
    [port] = (one for one in service["spec"]["ports"] if one["name"] == endpoint["port"])
    [workload] = of_kind("StatefulSet", found)
    pod = workload["spec"]["template"]
    labels = pod["metadata"]["labels"] | {"statefulset.kubernetes.io/pod-name": "hosting-0"}
    assert service["spec"]["selector"].items() <= labels.items(), "as the cluster labels the Pod"
    [container] = pod["spec"]["containers"]
    [listener] = (one for one in container["ports"] if one["name"] == port["targetPort"])
    environment = dict(variables(found))
    assert environment["PYSERVICE_METRICS"] == f"0.0.0.0:{listener['containerPort']}"
    assert not list(of_kind("ServiceMonitor", objects(VALUES, tmp_path)))


def monitored_service(monitor: Object, found: list[Object]) -> Object:
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    [service] = (
        one for one in of_kind("Service", found) if selected <= one["metadata"]["labels"].items()
    )
    return service


def test_monitoring_finds_the_metrics_of_nodes(tmp_path: Path) -> None:
    monitoring = {"serviceMonitor": {"enabled": True}, "node": {"metrics": "node"}}
    found = objects({**VALUES, **monitoring}, tmp_path)
    _, monitor = of_kind("ServiceMonitor", found)
    service = monitored_service(monitor, found)
    assert service["metadata"]["name"] == "hosting-node"
    [endpoint] = monitor["spec"]["endpoints"]
    [port] = service["spec"]["ports"]
    assert port["name"] == endpoint["port"]
    [workload] = of_kind("DaemonSet", found)
    pod = workload["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    environment = dict(variables(found, "DaemonSet"))
    assert environment["PYSERVICE_METRICS"] == f"10.250.0.11:{port['targetPort']}"
    [container] = pod["spec"]["containers"]
    assert "host" not in container["livenessProbe"]["httpGet"], "the address of the Pod"
    assert "ports" not in container, "two Pods of an upgrade share the port of their node"


def variables(found: list[Object], kind: str = "StatefulSet") -> Iterator[tuple[str, str]]:
    """Yields the variables of a workload's Pod, as a node sets them."""
    [workload] = of_kind(kind, found)
    [container] = workload["spec"]["template"]["spec"]["containers"]
    fields = {
        "status.podIP": "10.244.1.7",
        "status.hostIP": "10.250.0.11",
        "spec.nodeName": "n1",
    }
    known = {
        **SERVICES,
        "$(HOSTING_INTERNAL_SERVICE_HOST)": "10.96.0.8",
        "$(NODE_NAME)": "n1",
        "$(NODE_ADDRESS)": "10.250.0.11",
    }
    for one in container["env"]:
        source = one.get("valueFrom", {})
        if secret := source.get("secretKeyRef"):
            value = SECRETS[secret["name"], secret["key"]]
        elif field := source.get("fieldRef"):
            value = fields[field["fieldPath"]]
        else:
            value = one["value"]
        for reference, text in known.items():
            value = value.replace(reference, text)
        yield one["name"], value


def secrets_of(found: list[Object], kind: str) -> dict[str, str]:
    """Returns the secret at each folder of a workload's container."""
    [workload] = of_kind(kind, found)
    pod = workload["spec"]["template"]["spec"]
    secrets = {
        one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one
    }
    [container] = pod["containers"]
    mounts = ((one["mountPath"], secrets.get(one["name"])) for one in container["volumeMounts"])
    return {path: secret for path, secret in mounts if secret is not None}


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_ports_of_players_have_the_certificate_of_a_secret(tmp_path: Path, kind: str) -> None:
    certificates = Certificates(tmp_path / "issued")
    certificates.renew("*.play.example.com")
    tls = {"secret": "wildcard", "hosts": ["*.play.example.com"]}
    values = {**EVERYTHING, "node": {"tls": tls}}
    found = objects(values, tmp_path)
    assert secrets_of(found, kind)["/etc/hosting/players"] == "wildcard"
    (tmp_path / "players").mkdir()
    (tmp_path / "players" / "tls.crt").symlink_to(certificates.cert)
    (tmp_path / "players" / "tls.key").symlink_to(certificates.key)
    check_settings(found, kind, tmp_path)
    assert "/etc/hosting/players" not in secrets_of(objects(EVERYTHING, tmp_path), kind)


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
@pytest.mark.parametrize("values", [VALUES, EVERYTHING], ids=["least", "everything"])
def test_settings_of_the_pods_pass_the_check(tmp_path: Path, values: Object, kind: str) -> None:
    check_settings(objects(values, tmp_path), kind, tmp_path)


def check_settings(found: list[Object], kind: str, tmp_path: Path) -> None:
    configuration = next(
        one["data"]["service.toml"] for one in of_kind("ConfigMap", found) if "data" in one
    )
    config = tmp_path / "service.toml"
    config.write_text(configuration)
    authority = NodeAuthority(tmp_path / "authority")
    players = str(tmp_path / "players")
    own = {
        **{
            name: value.replace("/etc/hosting/players", players)
            for name, value in variables(found, kind)
        },
        "PYSERVICE_CONFIG": str(config),
        "PYSERVICE_DATA_DIR": str(tmp_path / "data"),
        "PYSERVICE_KUBERNETES__CERTIFICATES": str(authority.issue_to_service(tmp_path / "tls")),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "pyservice", "check-config"],
        cwd=ROOT,
        env={**clean_environment(), **own, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "ok\n"), ended.stderr


def test_chart_refuses_a_cluster_that_does_not_refuse_a_second_replica(tmp_path: Path) -> None:
    [policy] = of_kind("ValidatingAdmissionPolicy", objects(VALUES, tmp_path))
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert "statefulsets/scale" in rule["resources"]
    ended = rendered(VALUES, tmp_path, "--kube-version=1.29.9")
    assert ended.returncode != 0
    assert "chart requires kubeVersion: >=1.30.0-0" in ended.stderr


def test_records_and_objects_are_where_the_values_say(tmp_path: Path) -> None:
    environment = dict(variables(objects(EVERYTHING, tmp_path)))
    assert environment["PYSERVICE_DATABASE_URL"] == SECRETS["database", "url"]
    assert environment["PYSERVICE_S3__BUCKET"] == "objects"
    assert environment["PYSERVICE_S3__SECRET_ACCESS_KEY"] == "secret"
    least = dict(variables(objects(VALUES, tmp_path)))
    assert not [name for name in least if "DATABASE" in name or "S3" in name]


def test_uninstallation_keeps_what_running_matches_need(tmp_path: Path) -> None:
    kept = {
        (one["kind"], one["metadata"]["name"])
        for one in objects(EVERYTHING, tmp_path)
        if one["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == {
        ("Namespace", "hosting-games"),
        ("ConfigMap", "hosting-game-servers"),
        ("NetworkPolicy", "hosting-games"),
    }


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (with_games(nodeNetworks=["10.0.0.1"]), "at '/games/nodeNetworks/0': '10.0.0.1' does not"),
        (with_games(regions=[{"name": "x"}]), "at '/games/regions/0': missing property 'region'"),
        ({**VALUES, "node": {"archivePort": "8094"}}, "at '/node/archivePort': got string, want"),
        ({**VALUES, "api": {"type": "Ingress"}}, "at '/api/type': value must be one of"),
        ({**VALUES, "node": {"tls": {"secret": "x"}}}, "at '/node/tls/hosts': minItems"),
    ],
)
def test_wrong_value_is_named_with_its_place(tmp_path: Path, values: Object, problem: str) -> None:
    ended = rendered(values, tmp_path)
    assert ended.returncode != 0
    assert problem in ended.stderr
