"""Certificates for the service and its nodes, signed by an authority of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pyservice.edge_guard.process import EDGE_GUARD_BINARY
from pyservice.network.node_names import NODE_NAME_MAX, SERVICE_HOST, host_of_node, is_node_name

_SERVICE_FOLDER: Final = "service"


class CertificatesFailed(Exception):
    """No certificate was made. The sentences say why."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def write_certificates(folder: Path, nodes: Sequence[str], days: int) -> dict[str, Path]:
    """Writes `ca.crt`, `tls.crt` and `tls.key` into a folder for the service and for each node.

    Returns these folders by the name in the certificate. `folder` has the key of the authority, which
    later calls use again. Raises CertificatesFailed.
    """
    problems = list(_problems(nodes))
    if problems:
        raise CertificatesFailed(problems)
    hosts = {SERVICE_HOST: _SERVICE_FOLDER, **{host_of_node(node): node for node in nodes}}
    targets = [f"{name}={host}" for host, name in hosts.items()]
    command = [str(EDGE_GUARD_BINARY), "certificates", str(folder), str(days), *targets]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise CertificatesFailed([made.stderr.strip().removeprefix("edge-guard: ")])
    return {host: folder / name for host, name in hosts.items()}


def _problems(nodes: Sequence[str]) -> Iterator[str]:
    for node in nodes:
        if not is_node_name(node):
            yield (
                f"--node {node}: must be the name of a node as in `kubectl get nodes`, at most "
                f"{NODE_NAME_MAX} characters"
            )
        elif node == _SERVICE_FOLDER:
            yield f"--node {node}: this folder has the certificate of the service"
