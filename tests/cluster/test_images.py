"""Images of the service and of the runner, as users without rights and with a read-only root file system."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.cluster.cluster import Cluster, Object, is_ready
from tests.cluster.cluster_files import RUNNER_IMAGE
from tests.cluster.machines import START_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PODS: Final = "/api/v1/namespaces/default/pods"
RUNTIMES: Final = """
set -e
test "$(id -un)" = server
python3 -c 'print("python")'
node -e 'console.log("node")'
java -version
! touch /file
"""


def start(cluster: Cluster, name: str, image: str, **container: Any) -> None:
    """Starts a Pod under the strictest standard of Kubernetes."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = [{"name": "data", "mountPath": path} for path in ("/var/lib/hosting", "/tmp")]
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "container",
                "image": image,
                "securityContext": restricted,
                "volumeMounts": mounts,
                **container,
            }
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    # The user is the one of the image.
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def end_of(cluster: Cluster, name: str) -> Object:
    """Waits until the container has ended, removes the Pod and returns how the container ended."""
    pod = cluster.wait_for(
        f"{PODS}/{name}", lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed")
    )
    state: Object = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    state["log"] = cluster.kubectl("logs", name)
    cluster.kubectl("delete", "pod", name, "--wait=false")
    return state


def test_runner_has_python_node_and_java(cluster: Cluster) -> None:
    start(cluster, "runner", RUNNER_IMAGE, command=["sh", "-c", RUNTIMES])
    end = end_of(cluster, "runner")
    assert end["exitCode"] == 0, end["log"]
    assert {"python", "node"} <= set(end["log"].splitlines())


def test_service_becomes_ready_and_ends_at_sigterm(cluster: Cluster, service_image: str) -> None:
    settings = {"PYSERVICE_METRICS": "0.0.0.0:8090", "PYSERVICE_DATA_DIR": "/var/lib/hosting/data"}
    start(
        cluster,
        "service",
        service_image,
        env=[{"name": name, "value": value} for name, value in settings.items()],
        readinessProbe={"httpGet": {"path": "/readyz", "port": 8090}, "periodSeconds": 1},
    )
    cluster.wait_for(f"{PODS}/service", is_ready, START_S)
    # The first process, as kubelet does when the Pod is deleted.
    cluster.kubectl("exec", "service", "--", "python3", "-c", "import os; os.kill(1, 15)")
    end = end_of(cluster, "service")
    assert end["exitCode"] == 0, end["log"]
