"""Enforcement of NetworkPolicies by rules for packets that leave the Pods of a node.

The cluster of the tests has no network plugin that enforces policies. This one knows the egress part of policies that
select all Pods of their namespace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from tests.cluster.cluster import Cluster

PODS_NETWORK: Final = "10.244.0.0/16"
_CHAIN: Final = "POLICIES"
_ANY_PORT: Final[Mapping[str, Any]] = {}


class _Allowed(NamedTuple):
    """Addresses that Pods may reach."""

    network: str
    exceptions: tuple[str, ...]
    port: Mapping[str, Any]


@contextlib.contextmanager
def enforced_policies(cluster: Cluster, node: str, namespace: str) -> Iterator[None]:
    """Enforces the policies of a namespace on a node that has Pods of this namespace only.

    Pods that a policy names are those of now.
    """
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    allowed = [one for policy in _items(cluster, path) for one in _allowed(cluster, policy["spec"])]
    chains = [_CHAIN, *(f"{_CHAIN}-{number}" for number in range(len(allowed)))]
    entry = ("FORWARD", "-s", PODS_NETWORK, "-i", "pods", "-j", _CHAIN)
    rules: list[tuple[str, ...]] = []
    rules += [("-A", _CHAIN, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")]
    for chain, one in zip(chains[1:], allowed, strict=True):
        rules += [("-A", chain, "-d", network, "-j", "RETURN") for network in one.exceptions]
        rules += [("-A", chain, "-j", "ACCEPT")]
        rules += [("-A", _CHAIN, "-d", one.network, *_match(one.port), "-j", chain)]
    rules += [("-A", _CHAIN, "-j", "DROP")]
    with contextlib.ExitStack() as stack:
        for chain in chains:
            cluster.run_on(node, "iptables", "-N", chain)
            stack.callback(cluster.run_on, node, "iptables", "-X", chain)
        # A chain that another one names cannot be removed.
        for chain in chains:
            stack.callback(cluster.run_on, node, "iptables", "-F", chain)
        for rule in rules:
            cluster.run_on(node, "iptables", *rule)
        cluster.run_on(node, "iptables", "-I", *entry)
        stack.callback(cluster.run_on, node, "iptables", "-D", *entry)
        yield


def _match(port: Mapping[str, Any]) -> tuple[str, ...]:
    return ("-p", port["protocol"].lower(), "--dport", str(port["port"])) if port else ()


def _allowed(cluster: Cluster, spec: Mapping[str, Any]) -> Iterator[_Allowed]:
    assert not spec["podSelector"], "the policy selects some Pods only"
    for rule in spec["egress"]:
        ports = rule.get("ports", [_ANY_PORT])
        for peer in rule["to"]:
            for network, exceptions in _networks(cluster, peer):
                yield from (_Allowed(network, exceptions, port) for port in ports)


def _networks(cluster: Cluster, peer: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the networks of IPv4 that a peer names, with exceptions."""
    block = peer.get("ipBlock")
    if block is not None:
        if ":" not in block["cidr"]:
            yield block["cidr"], tuple(block.get("except", ()))
        return
    for namespace in _selected(cluster, "/api/v1/namespaces", peer["namespaceSelector"]):
        path = f"/api/v1/namespaces/{namespace['metadata']['name']}/pods"
        for pod in _selected(cluster, path, peer.get("podSelector", {})):
            yield f"{pod['status']['podIP']}/32", ()


def _selected(cluster: Cluster, path: str, selector: Mapping[str, Any]) -> list[Any]:
    assert selector.keys() <= {"matchLabels"}, selector
    labels = selector.get("matchLabels", {}).items()
    words = ",".join(f"{name}={value}" for name, value in labels)
    return _items(cluster, f"{path}?labelSelector={quote(words)}")


def _items(cluster: Cluster, path: str) -> list[Any]:
    return list((cluster.get(path) or {"items": []})["items"])
