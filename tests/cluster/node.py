"""Nodes of a cluster: machines with containerd, kubelet and kube-proxy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.cluster.cluster_files import BIN, PAUSE_IMAGE
from tests.cluster.control_groups import group_of, make_group, remove_group
from tests.cluster.control_plane import ADDRESS, POD_NETWORK, ControlPlane
from tests.cluster.image_store import copy_image_store, mount_programs, wait_containerd
from tests.cluster.machines import Machine, connect, disconnect, set_link

_KERNEL_VALUES: Final = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
"""Values of the whole kernel that kubelet sets. It gets files of its own in their place."""
_FOLDERS: Final = ("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/pods")


class Node:
    """A node that is plugged into the bridge of the control plane."""

    def __init__(self, folder: Path, number: int, control_plane: ControlPlane) -> None:
        self.name = f"n{number}"
        self.address = f"10.250.0.{10 + number}"
        self.pods = f"10.244.{number}.0/24"
        self.machine = Machine(self.name, folder / self.name)
        self._control_plane = control_plane

    def boot(self) -> None:
        """Creates the machine and starts containerd."""
        self.machine.start(BIN / "pause")
        self._connect()
        self._mount()
        make_group(self.name)
        self._write_files()
        self.machine.spawn("containerd", "containerd", "--config", self._file("containerd.toml"))

    def join(self) -> None:
        """Starts kubelet and kube-proxy. The node registers itself."""
        wait_containerd(self.machine)
        self.machine.spawn(
            *("kubelet", BIN / "kubelet", f"--config={self._file('kubelet.json')}"),
            f"--kubeconfig={self._control_plane.credentials(self.name)}",
            *(f"--hostname-override={self.name}", f"--node-ip={self.address}"),
        )
        limits = ("max-per-core", "tcp-timeout-established", "tcp-timeout-close-wait")
        self.machine.spawn(
            *("kube-proxy", BIN / "kube-proxy", f"--kubeconfig={self._control_plane.kubeconfig}"),
            *(f"--hostname-override={self.name}", f"--cluster-cidr={POD_NETWORK}"),
            *("--proxy-mode=iptables", "--healthz-bind-address=127.0.0.1:10256"),
            # 0 leaves the limits of the whole kernel alone.
            *(f"--conntrack-{name}=0" for name in limits),
        )

    def cut_off(self) -> None:
        """Unplugs the node. Its Pods run on, and no packet reaches them."""
        set_link(self._control_plane.machine, self.name, "down")

    def reconnect(self) -> None:
        set_link(self._control_plane.machine, self.name, "up")

    def pin(self, image: str, repository: str) -> str:
        """Lets Pods name an image that this node has by its digest. Returns that reference."""
        images = ("ctr", "--namespace=k8s.io", "images")
        listed = self.machine.run(*images, "list", f"name=={image}")
        _, line = listed.splitlines()
        reference = f"{repository}@{line.split()[2]}"
        self.machine.run(*images, "tag", "--force", image, reference)
        return reference

    def kill(self) -> None:
        """Ends everything on the node at once. `boot` and `join` start it again."""
        self.machine.kill()
        disconnect(self._control_plane.machine, self.name)
        remove_group(self.name)

    def _file(self, name: str) -> Path:
        return self.machine.folder / name

    def _connect(self) -> None:
        connect(self._control_plane.machine, self.name, self.machine, f"{self.address}/24")
        self.machine.ip("route", "add", "default", "via", ADDRESS)
        self._control_plane.machine.ip("route", "replace", self.pods, "via", self.address)
        self.machine.run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def _mount(self) -> None:
        """Gives the node folders of its own at the usual paths."""
        run, own = self.machine.run, self.machine.folder
        for name in _KERNEL_VALUES:
            copy = own / "kernel" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(Path("/proc/sys", name).read_text())
            run("mount", "--bind", copy, f"/proc/sys/{name}")
        mount_programs(self.machine)
        for name in ("var", "work"):
            (own / name).mkdir(exist_ok=True)
        layers = f"lowerdir=/var,upperdir={own}/var,workdir={own}/work"
        run("mount", "-t", "overlay", "-o", layers, "var", "/var")
        folders = own / "folders"
        folders.mkdir(exist_ok=True)
        copy_image_store(folders / "containerd")
        for folder in _FOLDERS:
            # An overlay cannot lie on an overlay, so these are plain folders.
            path = folders / Path(folder).name
            path.mkdir(exist_ok=True)
            run("mkdir", "-p", folder)
            run("mount", "--bind", path, folder)
        run("mount", "-t", "tmpfs", "run", "/run")
        # Volumes of Pods appear in containers that started before.
        run("mount", "--make-rshared", "/")

    def _write_files(self) -> None:
        self._file("cni").mkdir(exist_ok=True)
        self._file("cni/pods.conflist").write_text(json.dumps(self._pod_network()))
        self._file("containerd.toml").write_text(self._containerd())
        self._file("kubelet.json").write_text(json.dumps(self._kubelet()))

    def _pod_network(self) -> dict[str, Any]:
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
        plugins = [{**bridge, "ipam": addresses}, ports]
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}

    def _containerd(self) -> str:
        # Without CAP_SYS_RESOURCE, root cannot lower the score of the OOM killer as kubelet asks.
        return f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{self._file("cni")}"
"""

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{group_of(self.name)}",
            "failSwapOn": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "address": self.address,
            "healthzBindAddress": "127.0.0.1",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "resolvConf": "",
            # The cluster has no DNS. A look-up fails at once.
            "clusterDNS": ["127.0.0.1"],
            "clusterDomain": "cluster.local",
            "makeIPTablesUtilChains": False,
            "enforceNodeAllocatable": ["pods"],
            # The disk of this machine may be nearly full.
            "evictionHard": {
                "memory.available": "100Mi",
                **dict.fromkeys(
                    ("nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"
                ),
            },
            # Images without a registry must stay.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "1s",
            # Pods beyond their disk limit end within seconds, and not only after a minute.
            "volumeStatsAggPeriod": "2s",
            "nodeLeaseDurationSeconds": 4,
            "serializeImagePulls": False,
            # Stories kill the service several times within minutes.
            "featureGates": {"KubeletCrashLoopBackOffMax": True},
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
        }
