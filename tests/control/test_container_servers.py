"""Images and bundles as dynamic servers, with a real OCI runtime."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pyservice.runtime.filesystem import is_folder_empty
from pyservice.runtime.run_folder import RunFolder
from tests.support import container_images, game_programs
from tests.support.container_images import file
from tests.support.full_service import Developer, FullService, eventually, running
from tests.support.server_back_end import (
    ServerBackEnd,
    echoed_by_server,
    process_of,
    reached,
    without_usage,
)
from tests.support.upload_files import packed

pytestmark = [pytest.mark.anyio, pytest.mark.full, container_images.needs_oci_runtime]

OWNER: Final = 3_100_000
FOREIGN_PORT: Final = 11_999
"""A port outside the ranges of game servers."""

needs_control_group: Final = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root for a control group of version 2"
)


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    ids = {"container_user_ids": f"{OWNER}-{OWNER + 65_535}"}
    settings = {**game_programs.SETTINGS, **ids, "kinds": container_images.KINDS}
    with running(
        FullService(tmp_path_factory.mktemp("containers"), runtime=settings)
    ) as full_service:
        yield full_service


@pytest.fixture
async def back_end(full_service: FullService) -> AsyncIterator[ContainerServers]:
    client = full_service.client("http")
    developer = Developer(full_service, client)
    game_id = await developer.game()
    back_end = ContainerServers(developer, game_id, await developer.service_token(game_id))
    back_end.server_ids, back_end.build_id = [], ""
    yield back_end
    for server_id in back_end.server_ids:
        await back_end.call("destroy_server", server_id=server_id, override_kill_timeout=0)
    await client.close()


class ContainerServers(ServerBackEnd):
    async def image(self, *files: Any, **form: Any) -> str:
        """Builds an image with the server. `config` is that of the image."""
        config = {"config": form.pop("config")} if "config" in form else {}
        content = container_images.saved(container_images.server_layer(*files), **config)
        return await self.build(content, kind="docker_image", **form)

    async def bundle(self, *files: Any, **content: Any) -> str:
        return await self.build(container_images.bundle(*files, **content), kind="oci_bundle")

    async def reached(self, build_id: str, play: str = "") -> Any:
        """Starts a server. Returns its record as soon as it answers players."""
        record = await self.until((await self.of(build_id, play))["id"], "running")
        await eventually(lambda: reached(record))
        return record

    async def of(self, build_id: str, play: str = "", **more: Any) -> Any:
        runtime = {"build": build_id, "environment": {"PLAY": play}, **more.pop("runtime", {})}
        return await self.create(runtime=runtime, **more)

    async def output_until(self, server_id: str, line: str) -> list[str]:
        lines: list[str] = (await self.lines(server_id))["lines"]
        return lines if line in lines else []

    async def output(self, build_id: str, play: str, **more: Any) -> list[str]:
        server = await self.of(build_id, f"{play} exit:0", **more)
        ended_server = await self.until(server["id"], "destroyed", "failed")
        errors = (await self.lines(server["id"], "std_err"))["lines"]
        assert (ended_server["status"], ended_server.get("exit_code")) == ("destroyed", 0), (
            ended_server,
            errors,
        )
        return list((await self.lines(server["id"]))["lines"])


async def test_container_does_not_own_the_null_device_of_the_machine(
    back_end: ContainerServers,
) -> None:
    # As its owner, a container could change the mode, and every program of the machine would fail.
    await back_end.output(await back_end.image(), "")
    assert os.stat(os.devnull).st_uid not in range(OWNER, OWNER + 65_536)


@pytest.mark.parametrize(
    ("kind", "compression"),
    [
        ("docker_image", "none"),
        ("docker_image", "gzip"),
        ("oci_bundle", "zstd"),
        ("oci_bundle", "lz4"),
    ],
)
async def test_server_of_every_compression_runs_and_stops(
    back_end: ContainerServers, kind: str, compression: str
) -> None:
    content = (
        container_images.bundle()
        if kind == "oci_bundle"
        else container_images.saved(container_images.server_layer())
    )
    content = content if compression == "none" else packed(content, compression)
    build_id = await back_end.build(content, kind=kind, compression=compression)
    server_id = (await back_end.reached(build_id))["id"]
    await back_end.good("destroy_server", server_id=server_id)
    ended_server = await back_end.until(server_id, "destroyed")
    assert ended_server["exit_code"] == 128 + 15, (
        "SIGTERM reached the process, though it has no handler"
    )
    assert "failure" not in ended_server
    first = (await back_end.lines(server_id))["lines"][0]
    assert first == ("begins --usual" if kind == "docker_image" else "begins ")


async def test_image_layout_runs_with_and_without_docker_manifest(
    back_end: ContainerServers,
) -> None:
    for with_manifest in (True, False):
        content = container_images.laid_out(
            container_images.server_layer(), with_manifest=with_manifest
        )
        build_id = await back_end.build(content, kind="docker_image", image_tag="server:latest")
        assert await back_end.output(build_id, "") == ["begins --usual"]


async def test_arguments_replace_image_cmd_and_extend_bundle_args(
    back_end: ContainerServers,
) -> None:
    image = await back_end.image()
    options = {"arguments": ["--map", "$(MAP)"], "environment": {"PLAY": "exit:0", "MAP": "sea"}}
    assert await back_end.output(image, "", runtime={"build": image, **options}) == [
        "begins --map sea"
    ]
    bundle = await back_end.bundle(args=[container_images.PROGRAM, "--usual"])
    output = await back_end.output(bundle, "", runtime={"build": bundle, **options})
    assert output == ["begins --usual --map sea"]
    bare = {"Cmd": ["server", "--port", "$(PORT)"], "WorkingDir": "/home/game/new"}
    bare_image = await back_end.image(config=bare)
    (first, second) = await back_end.output(bare_image, "at")
    assert first.startswith("begins --port 1")
    assert second == "at /home/game/new"


async def test_container_environment_is_exact(back_end: ContainerServers) -> None:
    config = {
        "Entrypoint": [container_images.PROGRAM],
        "Env": ["OF_IMAGE=1", "OF_BOTH=image", "HOSTING_SERVER_ID=mine", "PATH=/bin:/own"],
        "User": "game",
    }
    build_id = await back_end.image(config=config)
    environment = {"PLAY": "env exit:0", "OF_BOTH": "configuration"}
    server = await back_end.of(build_id, runtime={"environment": environment})
    await back_end.until(server["id"], "destroyed")
    lines = (await back_end.lines(server["id"]))["lines"][1:]
    values = dict(line.split("=", 1) for line in lines)
    assert values["OF_IMAGE"] == "1"
    assert values["OF_BOTH"] == "configuration"
    assert values["HOSTING_SERVER_ID"] == server["id"]
    assert values["HOME"] == "/home/game"
    assert values["PATH"] == "/bin:/own"
    known = {"OF_IMAGE", "OF_BOTH", "HOME", "PATH", "PLAY", "PORT", "PORT_GAME"}
    assert {name for name in values if not name.startswith("HOSTING_")} == known


async def test_container_exit_code_and_signal_are_recorded(back_end: ContainerServers) -> None:
    build_id = await back_end.bundle()
    for play, exit_code in (("exit:7", 7), ("crash", 128 + signal.SIGABRT)):
        server = await back_end.of(build_id, play)
        ended_server = await back_end.until(server["id"], "destroyed", "failed")
        assert (ended_server["status"], ended_server["exit_code"]) == ("destroyed", exit_code)


async def test_container_that_ignores_sigterm_is_killed(
    back_end: ContainerServers, full_service: FullService
) -> None:
    server = await back_end.reached(await back_end.bundle(), "ignore-sigterm")
    inside = container_of(full_service, server["id"])
    await back_end.good("destroy_server", server_id=server["id"])
    assert (await back_end.get(server["id"]))["status"] == "stopping"
    assert is_there(inside)
    await back_end.good("destroy_server", server_id=server["id"], override_kill_timeout=100)
    ended_server = await back_end.until(server["id"], "destroyed")
    assert ended_server["exit_code"] == 128 + signal.SIGKILL
    assert not is_there(inside)
    run_folder = full_service.data_dir / "servers" / server["id"]

    async def is_cleaned() -> bool:
        return is_folder_empty(run_folder / "scratch") and not (run_folder / "bundle").exists()

    await eventually(is_cleaned)


async def test_stop_right_after_start_is_delivered(back_end: ContainerServers) -> None:
    build_id = await back_end.bundle()
    for _ in range(5):
        server = await back_end.of(build_id)
        await back_end.until(server["id"], "running")
        await back_end.good("destroy_server", server_id=server["id"])
        ended_server = await back_end.until(server["id"], "destroyed")
        assert ended_server["destroyed_at"] - ended_server["created_at"] < 10_000, (
            "long before it would be killed"
        )


async def test_container_does_not_see_the_host(
    back_end: ContainerServers, full_service: FullService
) -> None:
    keys = full_service.data_dir / "keys.json"
    assert keys.exists()
    build_id = await back_end.image()
    play = (
        f"identity see:/ see:/proc see:/home see:/root see:/dev read:{keys} see:{full_service.data_dir}"
        " read:/proc/1/cmdline read:/etc/shadow read:/proc/self/uid_map rights"
        " write:/proc/sys/kernel/hostname write:/bin/own write:/tmp/x read:/proc/self/mountinfo"
    )
    server = await back_end.of(build_id, f"{play} exit:0")
    await back_end.until(server["id"], "destroyed")
    lines = (await back_end.lines(server["id"]))["lines"]
    visible = {tuple(line.split()[:2]): line.split()[2:] for line in lines if len(line.split()) > 1}
    assert visible["see", "/"] == ["bin", "dev", "etc", "home", "proc", "root", "tmp"]
    assert visible["see", "/home"] == ["game"]
    assert visible["see", "/root"] == []
    processes = [name for name in visible["see", "/proc"] if name.isdigit()]
    assert len(processes) == 1, "the program sees itself only, not its keeper"
    assert visible["read", str(keys)] == ["NotFound"]
    assert visible["see", str(full_service.data_dir)] == ["NotFound"]
    assert visible["read", "/proc/1/cmdline"] == ["NotFound"]
    assert visible["read", "/etc/shadow"] == ["NotFound"]
    assert visible["read", "/proc/self/uid_map"] == ["0", str(OWNER), "65536"]
    assert visible["rights", "-1"] == []
    (refused,) = visible["write", "/proc/sys/kernel/hostname"]
    assert refused in ("ReadOnlyFilesystem", "PermissionDenied")
    assert visible["write", "/bin/own"] == visible["write", "/tmp/x"] == ["written"]
    assert visible["CapEff:", "0000000000000000"] == visible["CapBnd:", "0000000000000000"] == []
    assert visible["NoNewPrivs:", "1"] == []
    assert visible["SigBlk:", "0000000000000000"] == []
    prefixes = (f"read {keys}", f"see {full_service.data_dir}")
    others = [line for line in lines if not line.startswith(prefixes)]
    assert str(full_service.data_dir) not in "".join(others)
    unchanged = await back_end.output(build_id, "see:/bin")
    assert unchanged[-1] == "see /bin server", "a container writes only its own copy"


async def test_container_runs_as_the_user_of_the_image(
    back_end: ContainerServers, full_service: FullService
) -> None:
    config = {"Entrypoint": [container_images.PROGRAM], "User": "game"}
    more = (file("home/game/secret", b"saved", 0o600, uid=1000, gid=1001),)
    build_id = await back_end.image(*more, file("root/secret", b"of root", 0o600), config=config)
    server = await back_end.of(build_id, "identity read:/home/game/secret read:/root/secret")
    lines = await eventually(lambda: back_end.output_until(server["id"], "listens"))
    ids = {"Uid: 1000 1000 1000 1000", "Gid: 1001 1001 1001 1001", "Groups: 1002"}
    reads = {"read /home/game/secret saved", "read /root/secret PermissionDenied"}
    assert ids | reads <= set(lines)
    inside = container_of(full_service, server["id"])
    assert Path(f"/proc/{inside}").stat().st_uid == OWNER + 1000


async def test_bundle_gets_no_requested_privilege(
    back_end: ContainerServers, full_service: FullService, tmp_path: Path
) -> None:
    hook = tmp_path / "hooked"
    every = ["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"]
    config = {
        "mounts": [
            {"destination": "/host", "type": "bind", "source": "/", "options": ["rbind", "rw"]}
        ],
        "hooks": {
            name: [{"path": "/bin/touch", "args": ["touch", str(hook)]}]
            for name in ("prestart", "createRuntime", "poststart", "poststop")
        },
        "linux": {
            "namespaces": [],
            "devices": [{"path": "/dev/sda", "type": "b", "major": 8, "minor": 0}],
            "cgroupsPath": "/elsewhere",
            "sysctl": {"kernel.hostname": "mine"},
        },
        "root": {"path": "rootfs", "readonly": True},
    }
    process = {
        "capabilities": dict.fromkeys(("effective", "bounding", "permitted"), every),
        "noNewPrivileges": False,
        "user": {"uid": 0, "gid": 0},
        "env": ["OF_BUNDLE=1"],
    }
    build_id = await back_end.bundle(config=config, **process)
    lines = await back_end.output(
        build_id, "identity see:/host see:/dev write:/own write:/tmp/own env"
    )
    expected = {"see /host NotFound", "CapEff: 0000000000000000", "NoNewPrivs: 1", "OF_BUNDLE=1"}
    assert expected | {"write /own ReadOnlyFilesystem", "write /tmp/own written"} <= set(lines)
    (devices,) = [line for line in lines if line.startswith("see /dev")]
    assert "sda" not in devices
    assert not hook.exists()


async def test_container_over_its_memory_limit_is_stopped(back_end: ContainerServers) -> None:
    build_id = await back_end.bundle()
    server = await back_end.of(build_id, "eat", resources={"cpu": 100, "memory": 64})
    ended_server = await back_end.until(server["id"], "destroyed", "failed")
    assert (ended_server["status"], ended_server["failure"]["reason"]) == (
        "failed",
        "OUT_OF_MEMORY",
    )


async def test_container_that_cannot_run_has_a_reason(back_end: ContainerServers) -> None:
    absent = await back_end.bundle(args=["/bin/nothing-here"])
    foreign = file("./rootfs/bin/foreign", b"no program", 0o755)
    broken = await back_end.bundle(foreign, args=["/bin/foreign"])
    nothing = await back_end.image(config={})
    for build_id, words in ((absent, "nothing-here"), (broken, "exec"), (nothing, "ENTRYPOINT")):
        server = await back_end.of(build_id)
        ended_server = await back_end.until(server["id"], "failed")
        assert ended_server["failure"]["reason"] == "EXEC_FAILED"
        assert words in ended_server["failure"]["message"].replace("Exec", "exec")
        assert "exit_code" not in ended_server


async def test_container_survives_a_kill_of_both_planes(
    back_end: ContainerServers, full_service: FullService
) -> None:
    record = await back_end.reached(await back_end.image())
    inside = container_of(full_service, record["id"])
    for name in ("LOCK", "control/LOCK"):
        os.kill(int((full_service.data_dir / name).read_text().split()[0]), signal.SIGKILL)
    assert await echoed_by_server(record) == b"hello", "the container needs no plane"

    async def back_again() -> bool:
        try:
            return (await back_end.call("get_server", server_id=record["id"])).code == "OK"
        except httpx.TransportError:
            return False

    await eventually(back_again)
    assert without_usage(await back_end.get(record["id"])) == without_usage(record)
    assert container_of(full_service, record["id"]) == inside
    await back_end.good("destroy_server", server_id=record["id"])
    ended_server = await back_end.until(record["id"], "destroyed")
    assert ended_server["exit_code"] == 128 + signal.SIGTERM
    assert not is_there(inside)


@pytest.mark.parametrize("victim", ["keeper", "runtime"])
async def test_killed_keeper_or_runtime_ends_the_container(
    back_end: ContainerServers, full_service: FullService, victim: str
) -> None:
    server = await back_end.reached(await back_end.bundle())
    inside = container_of(full_service, server["id"])
    state = RunFolder(full_service.data_dir / "servers" / server["id"]).state()
    assert state is not None
    pid = state.keeper_pid if victim == "keeper" else parent_of(inside)
    os.kill(pid, signal.SIGKILL)
    ended_server = await back_end.until(server["id"], "destroyed", "failed")
    expected = "LOST" if victim == "keeper" else None
    assert ended_server.get("failure", {}).get("reason") == expected

    async def is_gone() -> bool:
        return not is_there(inside)

    await eventually(is_gone)


def container_of(full_service: FullService, server_id: str) -> int:
    pid = process_of(full_service, server_id)
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        (pid,) = map(int, children)
    return pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@needs_control_group
async def test_container_is_in_the_group_of_its_network_rules(
    back_end: ContainerServers, full_service: FullService
) -> None:
    record = await back_end.reached(await back_end.image())
    server_id = record["id"]
    first = process_of(full_service, server_id)
    namespace = os.readlink(f"/proc/{first}/ns/pid_for_children")
    processes = [pid for pid in Path("/proc").glob("[0-9]*") if is_in(pid, namespace)]
    assert len(processes) > 1, "the first process and the container"
    for process in processes:
        groups = (process / "cgroup").read_text().splitlines()
        [version_2] = [line for line in groups if line.startswith("0::")]
        assert version_2.endswith(f"/{server_id}"), process


def is_in(process: Path, namespace: str) -> bool:
    try:
        return os.readlink(process / "ns/pid") == namespace
    except OSError:
        return False


@needs_control_group
async def test_forbidden_uses_of_the_network_fail_in_a_container(
    back_end: ContainerServers, full_service: FullService
) -> None:
    build_id = await back_end.image()
    apis = [full_service.ready[name] for name in ("http", "grpc")]
    with socket.create_server(("127.0.0.1", 0)) as service:
        loopback = f"127.0.0.1:{service.getsockname()[1]}"
        closed = (loopback, full_service.ready["metrics"], "169.254.169.254:80")
        foreign = f"0.0.0.0:{FOREIGN_PORT}"
        attempts = [f"{what}:{address}" for address in closed for what in ("connect", "send")]
        allowed = [f"connect:{address}" for address in apis]
        play = " ".join(["env", *attempts, f"bind:{foreign}", *allowed])
        lines = await back_end.output(build_id, play)
    assert {f"HOSTING_API_URL=http://{apis[0]}", f"HOSTING_GRPC_ADDRESS={apis[1]}"} <= set(lines)
    expected = {
        **{(what, address): errno.EPERM for what in ("connect", "send") for address in closed},
        **{(what, foreign): errno.EPERM for what in ("bind-tcp", "bind-udp")},
        **{("connect", address): 0 for address in apis},
    }
    results = [line.split() for line in lines if line.startswith(("connect ", "send ", "bind-"))]
    found = {(what, address): int(number) for what, address, number in results}
    assert found == expected
