"""Control plane of a cluster: etcd, the API server, the controllers and the scheduler."""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx

from tests.cluster.cluster_files import BIN
from tests.cluster.image_store import mount_programs
from tests.cluster.machines import Machine, network_of, until_started

ADDRESS: Final = "10.250.0.1"
POD_NETWORK: Final = "10.244.0.0/16"
URL: Final = f"https://{ADDRESS}:6443"
_SERVICE_NETWORK: Final = "10.96.0.0/16"
_FIRST_SERVICE: Final = "10.96.0.1"
_ETCD: Final = "http://127.0.0.1:2379"
_SPEAKERS: Final = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", "system:masters"),
}
"""User and group of each file with credentials."""
_EVICTION_S: Final = 2
"""Time after which Pods leave a node that is lost, unless they tolerate it longer."""
LOST_NODE_S: Final = 6
"""Time after which a silent node is lost."""


class ControlPlane:
    """Machine with the programs of the control plane, and with the bridge between the nodes."""

    def __init__(self, folder: Path, nodes: Sequence[str], lost_node_s: int) -> None:
        self.machine = Machine("control-plane", folder / "control-plane")
        self._folder = self.machine.folder
        self._nodes = nodes
        self._lost_node_s = lost_node_s
        self._tokens = {name: secrets.token_hex(16) for name in (*_SPEAKERS, *nodes)}

    @property
    def kubeconfig(self) -> Path:
        return self.credentials("admin")

    @property
    def authority(self) -> Path:
        return self._folder / "ca.crt"

    def credentials(self, name: str) -> Path:
        """Returns the kubeconfig of a node or of a program."""
        return self._folder / f"{name}.kubeconfig"

    def client(self) -> httpx.Client:
        """Returns an HTTP client of the API server for threads in the network of the cluster."""
        context = ssl.create_default_context(cafile=str(self.authority))
        headers = {"authorization": f"Bearer {self._tokens['admin']}"}
        return httpx.Client(base_url=URL, headers=headers, verify=context, timeout=30.0)

    def boot(self) -> None:
        """Creates the machine with its network and files."""
        machine = self.machine
        machine.start(BIN / "pause")
        mount_programs(machine)
        machine.run("mount", "-t", "tmpfs", "tmp", "/tmp")
        machine.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        machine.ip("link", "set", "lo", "up")
        machine.ip("link", "add", "bridge", "type", "bridge")
        machine.ip("address", "add", f"{ADDRESS}/24", "dev", "bridge")
        machine.ip("link", "set", "bridge", "up")
        # Connections to other addresses fail at once, and do not wait.
        machine.ip("route", "add", "prohibit", "default")
        self._write_certificates()
        self._write_credentials()

    def start_api(self) -> None:
        """Starts etcd in memory and the API server. Does not wait for them."""
        peers = "http://127.0.0.1:2380"
        self.machine.spawn(
            *("etcd", "etcd", "--data-dir=/tmp/etcd"),
            *(f"--listen-client-urls={_ETCD}", f"--advertise-client-urls={_ETCD}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            f"--initial-cluster=default={peers}",
        )
        self.spawn("kube-apiserver", *self._api_flags())

    def wait_api(self) -> None:
        with network_of(self.machine), self.client() as client:
            until_started(lambda: self._is_ready(client))

    def start_controllers(self) -> None:
        """Starts the controllers and the scheduler, and waits until Pods can be created."""
        controllers, scheduler = self.credentials("controllers"), self.credentials("scheduler")
        self.spawn(
            *("kube-controller-manager", "--leader-elect=false", "--bind-address=127.0.0.1"),
            *_credential_flags(controllers),
            f"--service-account-private-key-file={self._folder / 'accounts.key'}",
            *(f"--root-ca-file={self.authority}", f"--cluster-cidr={POD_NETWORK}"),
            *("--allocate-node-cidrs=false", "--node-monitor-period=1s"),
            f"--node-monitor-grace-period={self._lost_node_s}s",
            # Of two nodes, a lost one is half of the zone, in which evictions stop by default.
            *("--node-eviction-rate=100", "--secondary-node-eviction-rate=100"),
            "--unhealthy-zone-threshold=1",
        )
        self.spawn(
            *("kube-scheduler", "--leader-elect=false", "--bind-address=127.0.0.1"),
            *_credential_flags(scheduler),
        )
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        with network_of(self.machine), self.client() as client:
            until_started(lambda: client.get(account).status_code == httpx.codes.OK)

    def stop_api(self) -> None:
        """Kills the API server, and the programs that end without it. etcd stays."""
        # With an election of leaders, as in a usual cluster, both exit after ten seconds.
        for program in ("kube-scheduler", "kube-controller-manager", "kube-apiserver"):
            self.machine.end(program)

    def restart_api(self) -> None:
        """Starts again what `stop_api` has ended, and waits until the API server answers."""
        self.spawn("kube-apiserver", *self._api_flags())
        self.wait_api()
        self.start_controllers()

    def spawn(self, program: str, *flags: str) -> None:
        """Starts a program of `BIN` on this machine."""
        self.machine.spawn(program, BIN / program, *flags)

    def _is_ready(self, client: httpx.Client) -> bool:
        self.machine.require("etcd")
        self.machine.require("kube-apiserver")
        try:
            return client.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _api_flags(self) -> list[str]:
        folder = self._folder
        return [
            *(f"--etcd-servers={_ETCD}", f"--bind-address={ADDRESS}", "--secure-port=6443"),
            *(f"--tls-cert-file={folder}/api.crt", f"--tls-private-key-file={folder}/api.key"),
            *(f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=Node,RBAC"),
            *("--enable-admission-plugins=NodeRestriction", "--allow-privileged=true"),
            # Debian's etcd lacks what lists over a watch need. Their clients would repeat them with growing pauses.
            "--feature-gates=WatchList=false",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/accounts.pub",
            f"--service-account-signing-key-file={folder}/accounts.key",
            f"--service-cluster-ip-range={_SERVICE_NETWORK}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--default-not-ready-toleration-seconds={_EVICTION_S}",
            f"--default-unreachable-toleration-seconds={_EVICTION_S}",
        ]

    def _write_certificates(self) -> None:
        names = f"IP:{ADDRESS},IP:{_FIRST_SERVICE},DNS:kubernetes.default.svc"
        authority = ("-addext", "basicConstraints=critical,CA:TRUE")
        self._openssl("req", "-x509", *_request("ca", "cluster"), "-out", "ca.crt", *authority)
        issuer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=CA:FALSE")
        named = ("-addext", f"subjectAltName={names}")
        self._openssl("req", "-x509", *_request("api", "api"), "-out", "api.crt", *issuer, *named)
        self._openssl("genrsa", "-out", "accounts.key", "2048")
        self._openssl("rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._folder, check=True, capture_output=True)

    def _write_credentials(self) -> None:
        users = {
            **_SPEAKERS,
            **{name: (f"system:node:{name}", "system:nodes") for name in self._nodes},
        }
        lines = [
            f'{self._tokens[name]},{user},{name},"{group}"\n'
            for name, (user, group) in users.items()
        ]
        (self._folder / "tokens.csv").write_text("".join(lines))
        for name in users:
            self.credentials(name).write_text(json.dumps(self._kubeconfig(name)))

    def _kubeconfig(self, name: str) -> dict[str, object]:
        # JSON is YAML.
        cluster = {"server": URL, "certificate-authority": str(self.authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": self._tokens[name]}}],
            "contexts": [{"name": "it", "context": {"cluster": "cluster", "user": name}}],
            "current-context": "it",
        }


def _credential_flags(kubeconfig: Path) -> list[str]:
    kinds = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [f"--{kind}={kubeconfig}" for kind in kinds]


def _request(name: str, subject: str) -> list[str]:
    key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key")
    return [*key, "-days", "3650", "-subj", f"/CN={subject}"]
