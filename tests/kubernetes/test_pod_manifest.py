from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from pyservice.kubernetes.build_fetch import BuildFetch
from pyservice.kubernetes.pod_manifest import (
    RUN_REQUEST,
    ImageBuild,
    PodBuild,
    PodNote,
    PodTemplate,
    grace_s,
    pod_manifest,
    pod_note,
)
from pyservice.runtime.adapters import Adapter
from pyservice.runtime.run_layout import CannotRun
from pyservice.runtime.run_requests import PortRequest, Resources, RunRequest
from tests.support.pod_requests import BUILD, pod_template, run_request

NOTE: Final = json.loads(pod_note(run_request(), BUILD).encode())


def manifest(
    request: RunRequest | None = None,
    template: PodTemplate | None = None,
    build: PodBuild = BUILD,
) -> Any:
    request = request or run_request()
    return pod_manifest(request, build, pod_note(request, build), template or pod_template())


def container(**request: Any) -> Any:
    return manifest(run_request(**request))["spec"]["containers"][0]


def environment(made: Any) -> dict[str, str]:
    """Returns the variables of a container as Kubernetes sets them."""
    return {one["name"]: expand(one["value"]) for one in made["env"]}


def expand(text: str) -> str:
    """Returns a text without references, as Kubernetes changes it."""
    parts = text.split("$$")
    assert not any("$" in part for part in parts), "a reference would be replaced"
    return "$".join(parts)


def test_pod_has_the_name_labels_and_owner_of_its_service() -> None:
    request = run_request()
    metadata = manifest(request)["metadata"]
    assert (metadata["name"], metadata["namespace"]) == (request.id, "games")
    own = {"hosting/run": "lobby", "hosting/service": "hosting"}
    assert metadata["labels"] == {**own, "hosting/protected": "true"}
    [owner] = metadata["ownerReferences"]
    assert owner == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "hosting-game-servers",
        "uid": "owner-uid",
        "controller": True,
    }
    assert pod_template(service_name="mine").selector == "hosting/service=mine"


def test_note_brings_back_what_a_new_control_plane_must_know() -> None:
    request = run_request(
        owner="server", kill_timeout_ms=1_500, adapter=Adapter(ready="port", port="game")
    )
    pod = manifest(request)
    note = PodNote.of(pod)
    assert note is not None
    assert note == pod_note(request, BUILD)
    assert (note.region, note.group_id) == ("local", "group-1")
    placement = note.placement
    assert (placement.owner, placement.tier) == ("server", "basic-1d16")
    assert (placement.resources, placement.kill_timeout_ms) == (Resources(250, 512), 1_500)
    assert placement.adapter == request.adapter
    assert {name: port.number for name, port in placement.ports.items()} == {
        "admin": 20_000,
        "game": 20_001,
    }


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "{", "[]", "{}", '{"owner": "lobby"}', "null"),
        json.dumps({**NOTE, "ports": []}),
        json.dumps({**NOTE, "owner": "group"}),
        pytest.param("[" * 200_000, id="nested"),
    ],
)
def test_illegible_note_is_none(text: str | None) -> None:
    pod = manifest()
    pod["metadata"]["annotations"][RUN_REQUEST] = text
    assert PodNote.of(pod) is None
    del pod["metadata"]["annotations"]
    assert PodNote.of(pod) is None


def test_tokens_are_only_in_the_variables_of_the_game_server() -> None:
    pod = manifest()
    made = pod["spec"]["containers"][0]
    assert environment(made)["HOSTING_LOBBY_TOKEN"] == "secret"
    made["env"] = []
    assert "secret" not in json.dumps(pod)


def test_pod_meets_the_restricted_standard() -> None:
    spec = manifest()["spec"]
    security = spec["securityContext"]
    assert security["runAsNonRoot"]
    assert security["runAsUser"] == security["runAsGroup"] == 10_001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for made in (*spec["initContainers"], *spec["containers"]):
        assert made["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPort" in port for port in made.get("ports", []))
    assert all("emptyDir" in volume for volume in spec["volumes"])
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()


def test_pod_gets_no_credentials_and_is_never_restarted() -> None:
    spec = manifest()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["shareProcessNamespace"] is True


def test_resources_are_those_of_the_tier() -> None:
    resources = container(resources=Resources(250, 512), disk_mb=64)["resources"]
    assert resources["requests"] == {"cpu": "250m", "memory": "512Mi", "ephemeral-storage": "64Mi"}
    assert (resources["limits"]["cpu"], resources["limits"]["memory"]) == ("250m", "512Mi")


@pytest.mark.parametrize(
    ("disk_mb", "scratch_mb", "limit"),
    [
        *((64, 0, "64Mi"), (0, 0, "1024Mi"), (4_096, 0, "1024Mi"), (1, 0, "16Mi")),
        *((0, 32, "32Mi"), (64, 32, "32Mi"), (32, 64, "32Mi"), (0, 4_096, "1024Mi")),
    ],
)
def test_scratch_has_the_lowest_limit_and_the_pod_has_room_for_its_build(
    disk_mb: int, scratch_mb: int, limit: str
) -> None:
    build = replace(BUILD, scratch_mb=scratch_mb)
    pod = manifest(run_request(disk_mb=disk_mb), build=build)
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod["spec"]["volumes"]}
    assert volumes == {"build": {}, "scratch": {"sizeLimit": limit}}
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    # 1 GiB is the most to which this build may unpack.
    assert mebibytes(limits["ephemeral-storage"]) >= mebibytes(limit) + 1_024


def test_small_pod_fetches_its_build_with_enough_processor_time() -> None:
    spec = manifest(run_request(resources=Resources(50, 64)))["spec"]
    [fetching], [game] = spec["initContainers"], spec["containers"]
    assert fetching["resources"]["limits"] == {"cpu": "1000m", "memory": "256Mi"}
    assert fetching["resources"]["requests"] == {"cpu": "50m", "memory": "64Mi"}
    assert game["resources"]["limits"]["cpu"] == "50m"
    large = manifest(run_request(resources=Resources(4_000, 2_048)))["spec"]
    assert large["initContainers"][0]["resources"]["limits"] == {"cpu": "4000m", "memory": "2048Mi"}


@pytest.mark.parametrize(
    ("timeout_ms", "seconds"), [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (30_000, 30)]
)
def test_time_to_stop_is_rounded_up_and_never_zero(timeout_ms: int, seconds: int) -> None:
    assert grace_s(timeout_ms) == seconds
    spec = manifest(run_request(kill_timeout_ms=timeout_ms))["spec"]
    assert spec["terminationGracePeriodSeconds"] == seconds


def test_region_decides_about_nodes() -> None:
    regions = [
        {
            "region": "eu",
            "node_selector": {"example.com/pool": "games"},
            "tolerations": [
                {"key": "games"},
                {"key": "spot", "value": "yes", "effect": "NoSchedule"},
            ],
        }
    ]
    template = pod_template(regions=regions, priority_class="games", pull_secrets=["registry"])
    request = run_request(own_env={"HOSTING_REGION_ID": "eu"})
    spec = manifest(request, template)["spec"]
    assert spec["nodeSelector"] == {"example.com/pool": "games"}
    assert spec["tolerations"] == [
        {"key": "games", "operator": "Exists"},
        {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
    ]
    assert spec["priorityClassName"] == "games"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    elsewhere = manifest(run_request(own_env={"HOSTING_REGION_ID": "us"}), template)["spec"]
    assert not {"nodeSelector", "tolerations"} & elsewhere.keys()


def test_busy_nodes_are_preferred_and_pods_with_players_are_not_evicted() -> None:
    pod = manifest()
    affinity = pod["spec"]["affinity"]["podAffinity"]
    [packing] = affinity.pop("preferredDuringSchedulingIgnoredDuringExecution")
    assert not affinity, "no node is required"
    term = packing["podAffinityTerm"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"] == {"matchLabels": {"hosting/service": "hosting"}}
    annotations = pod["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_pod_avoids_silent_nodes() -> None:
    template = replace(pod_template(), silent_nodes=frozenset(("n2", "n1")))
    affinity = manifest(template=template)["spec"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    # The API server accepts one name for each requirement.
    assert term == {
        "matchFields": [
            {"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("n1", "n2")
        ]
    }
    assert "nodeAffinity" not in manifest()["spec"]["affinity"]


def test_variables_have_the_precedence_of_a_single_machine() -> None:
    template = replace(pod_template(), aliases={"LOBBY": "HOSTING_LOBBY_ID", "MINE": "MISSING"})
    request = run_request(
        env={"MODE": "fast", "LOBBY": "x", "PORT_GAME": "1"},
        own_env={"HOSTING_LOBBY_ID": "abc"},
    )
    made = manifest(request, template)["spec"]["containers"][0]
    assert environment(made) == {
        "MODE": "fast",
        "LOBBY": "abc",
        "HOSTING_LOBBY_ID": "abc",
        "HOSTING_BIND_ADDRESS": "0.0.0.0",
        "PORT_ADMIN": "20000",
        "PORT_GAME": "20001",
    }


def test_single_port_is_also_the_variable_port() -> None:
    made = container(ports={"game-1": PortRequest("tcp_udp")})
    assert {"PORT": "20000", "PORT_GAME_1": "20000"}.items() <= environment(made).items()
    assert made["ports"] == [
        {"containerPort": 20_000, "protocol": "TCP"},
        {"containerPort": 20_000, "protocol": "UDP"},
    ]


def test_kubernetes_replaces_nothing_in_variables_and_arguments() -> None:
    text = "$(HOSTING_LOBBY_TOKEN) $$(X) $HOME $"
    request = run_request(env={"TEXT": text}, args=(text, "--port=$(PORT_GAME)"))
    spec = manifest(request)["spec"]
    assert environment(spec["containers"][0])["TEXT"] == text
    *_, host, argument = spec["initContainers"][0]["command"]
    assert host == "$(HOSTING_NODE_ADDRESS)", "Kubernetes replaces this one"
    fetch = BuildFetch.decode(expand(argument))
    assert list(fetch.args) == [text, "--port=$(PORT_GAME)"]


def test_init_container_fetches_the_build_by_its_digest_from_its_node() -> None:
    spec = manifest(template=pod_template(archive_port=9_000))["spec"]
    [fetching] = spec["initContainers"]
    assert fetching["image"] == "service:1"
    assert fetching["command"][:3] == ["python3", "-m", "pyservice.node.fetch_build"]
    fetch = BuildFetch.decode(expand(fetching["command"][-1]))
    assert (fetch.sha256, fetch.compression) == (BUILD.sha256, "gzip")
    assert (fetch.length, fetch.port) == (4_096, 9_000)
    names = {one["name"] for one in spec["containers"][0]["env"]}
    assert set(fetch.variables) == names
    [address] = fetching["env"]
    assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"
    mounts = {
        made["name"]: {mount["name"]: mount for mount in made["volumeMounts"]}
        for made in (fetching, *spec["containers"])
    }
    assert "readOnly" not in mounts["fetch-build"]["build"]
    assert mounts["game-server"]["build"]["readOnly"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"env": {"A-B": "1"}}, "the name of the variable A-B may have only letters, digits and _"),
        ({"env": {"A": "x\0"}}, "the variable A has a NUL"),
        ({"args": ("x\0",)}, "an argument has a NUL"),
        ({"env": {"A": "x" * (128 << 10)}}, "The variable A is longer than"),
        ({"args": ("x" * (128 << 10),)}, "Argument 1, with its variables expanded, is longer than"),
    ],
)
def test_impossible_run_is_refused_with_a_sentence(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotRun, match=words):
        manifest(run_request(**fields))


def mebibytes(amount: str) -> int:
    assert amount.endswith("Mi")
    return int(amount.removesuffix("Mi"))


REFERENCE = f"registry.example.com/team/game@sha256:{'ab' * 32}"
IMAGE = ImageBuild(REFERENCE, "00000000-0000-4000-8000-000000000001")


def image_spec(request: RunRequest | None = None, **settings: Any) -> Any:
    request = request or run_request()
    note = pod_note(request, IMAGE)
    return pod_manifest(request, IMAGE, note, pod_template(**settings))["spec"]


def test_image_runs_itself_and_fetches_no_archive() -> None:
    spec = image_spec()
    assert "initContainers" not in spec
    [made] = spec["containers"]
    assert made["image"] == REFERENCE
    assert not {"command", "args", "workingDir"} & made.keys(), "those of the image"
    assert [volume["name"] for volume in spec["volumes"]] == ["scratch"]


def test_image_runs_as_its_own_user_without_rights() -> None:
    spec = image_spec()
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["securityContext"] == security, "its user is that of the image"
    archive = manifest()["spec"]
    [made], [usual] = spec["containers"], archive["containers"]
    assert made["securityContext"] == usual["securityContext"]
    for name in ("automountServiceAccountToken", "enableServiceLinks", "shareProcessNamespace"):
        assert spec[name] == archive[name]


def test_image_can_write_in_its_scratch_folder() -> None:
    spec = image_spec(run_request(disk_mb=64, env={"HOME": "/home/game"}))
    [made] = spec["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in made["volumeMounts"]}
    assert mounts == {"/hosting/scratch": "scratch", "/tmp": "scratch"}
    assert {"HOME": "/home/game", "TMPDIR": "/hosting/scratch"}.items() <= environment(made).items()
    # The scratch folder, and the logs.
    assert made["resources"]["limits"]["ephemeral-storage"] == "128Mi"


def test_arguments_of_an_image_have_the_references_of_a_single_machine() -> None:
    words = ("--port=$(PORT_GAME)", "$(UNKNOWN) $$(PORT_GAME) $HOME $$")
    [made] = image_spec(run_request(args=words))["containers"]
    assert "command" not in made, "the entry point of the image stays"
    assert list(map(expand, made["args"])) == [
        "--port=20001",
        "$(UNKNOWN) $(PORT_GAME) $HOME $$",
    ]


def test_pull_secrets_of_a_group_are_only_in_pods_of_its_images() -> None:
    other = "00000000-0000-4000-8000-000000000002"
    settings: Any = {
        "pull_secrets": ["registry"],
        "group_pull_secrets": {IMAGE.group_id: ["own", "registry"], other: ["theirs"]},
    }
    assert image_spec(**settings)["imagePullSecrets"] == [{"name": "registry"}, {"name": "own"}]
    usual = {"imagePullSecrets": [{"name": "registry"}]}
    archive = manifest(template=pod_template(**settings))["spec"]
    assert usual.items() <= archive.items(), "archives run in an image of the operator"
    assert "imagePullSecrets" not in image_spec(group_pull_secrets={other: ["theirs"]})


def test_note_of_an_image_has_its_group() -> None:
    assert pod_note(run_request(), IMAGE).group_id == IMAGE.group_id
