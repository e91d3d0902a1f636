from __future__ import annotations

import uuid
from typing import Any

from pyservice.kubernetes.pod_manifest import ArchiveBuild, OwnerReference, PodTemplate
from pyservice.runtime.run_requests import PortRequest, Resources, RunRequest
from pyservice.settings.kubernetes_section import KubernetesSettings

BUILD = ArchiveBuild("ab" * 32, "gzip", 4_096, "group-1")
OWNER = OwnerReference("v1", "ConfigMap", "hosting-game-servers", "owner-uid")


def run_request(**fields: Any) -> RunRequest:
    usual: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "owner": "lobby",
        "game_id": "game-1",
        "build_id": "build-1",
        "resources": Resources(250, 512),
        "tier": "basic-1d16",
        "own_env": {"HOSTING_REGION_ID": "local", "HOSTING_LOBBY_TOKEN": "secret"},
        "ports": {"game": PortRequest("udp"), "admin": PortRequest("https")},
    }
    return RunRequest(**(usual | fields))


def pod_template(**settings: Any) -> PodTemplate:
    usual = {"namespace": "games", "runner_image": "runner:1", "service_image": "service:1"}
    return PodTemplate(KubernetesSettings(**(usual | settings)), OWNER)
