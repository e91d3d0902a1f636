"""Interpreters of the machine under the isolations with a root of their own, as programs of game servers use them."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.build_sandbox import KEEPER_BINARY
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.isolation_trials import choose_isolation
from pyservice.runtime.node_preparation import system_paths
from pyservice.runtime.run_requests import Resources
from tests.support.runtime_host import RuntimeHost
from tests.support.upload_files import tar

pytestmark = pytest.mark.anyio

BUILD: Final = "0192f000-0000-7000-8000-000000000d00"
_numbers: Final = itertools.count()
PYTHON: Final = "/usr/bin/python3"
MEMORY_MB: Final = 320
SETTINGS: Final = (
    *("/etc/localtime", "/etc/timezone", "/etc/ssl/certs", "/etc/services", "/etc/protocols"),
    *("/etc/fonts", "/etc/mono"),
)
"""Settings of the machine that its programs need."""
CHECKSUMS: Final = """
export LC_ALL=C
for path; do echo "$path" $(find -L "$path" -type f -exec cksum {} + | sort | cksum); done
"""
JAVA: Final = """
public class Game { public static void main(String[] a) throws Exception {
  java.io.File file = java.io.File.createTempFile("abc", "d");
  System.out.println(file.getParent() + " " + System.getProperty("user.name"));
  System.out.println(Runtime.getRuntime().maxMemory() >> 20);
  System.out.println(java.util.UUID.randomUUID().toString().length()); } }
"""

needs_java: Final = pytest.mark.skipif(
    not (shutil.which("javac") and Path("/usr/bin/java").exists()),
    reason="no Java: apt-get install openjdk-17-jdk-headless",
)
needs_node: Final = pytest.mark.skipif(
    not Path("/usr/bin/node").exists(), reason="no Node.js: apt-get install nodejs"
)
needs_python: Final = pytest.mark.skipif(
    not Path(PYTHON).exists(), reason="no Python in /usr: apt-get install python3"
)


class Programs:
    def __init__(self, host: RuntimeHost) -> None:
        self._host = host
        self.has_memory_limit = host.node.groups.memory is not None

    async def output(self, *command: str, files: Mapping[str, bytes] | None = None) -> list[str]:
        """Runs a command that must succeed, and returns the lines of its standard output."""
        build_id = f"{BUILD[:-2]}{next(_numbers):02}"
        manifest = json.dumps({"command": command}).encode()
        self._host.store.archives[build_id] = tar({"server.json": manifest, **(files or {})})
        resources = Resources(1_000, MEMORY_MB)
        order = self._host.want(build_id=build_id, args=(), resources=resources)
        end = await self._host.reports.end(order.id)
        lines = [(line.stream, line.text) for line in self._host.of(order).lines()]
        assert (end.reason, end.exit_code) == ("exited", 0), lines
        return [text for stream, text in lines if stream == "std_out"]


@pytest.fixture(params=["user", "namespace"])
async def programs(host: RuntimeHost, tmp_path: Path, request: pytest.FixtureRequest) -> Programs:
    tmp_path.parent.chmod(0o755)
    folder, paths = host.folder / "servers", system_paths()
    isolation = await choose_isolation(request.param, KEEPER_BINARY, folder, paths)
    if isolation is None:
        pytest.skip(f"no isolation by {request.param}: this user or kernel has no rights for it")
    groups = ControlGroups.find(host.folder)
    host.node = replace(host.node, isolation=isolation, shared_paths=paths, groups=groups)
    await host.anew()
    return Programs(host)


@needs_python
async def test_python_has_shared_memory_processes_and_a_user(programs: Programs) -> None:
    script = """
import concurrent.futures, getpass, multiprocessing, os, pwd, socket, tempfile
from multiprocessing import shared_memory
if __name__ == "__main__":
    multiprocessing.Lock(); multiprocessing.Queue()
    memory = shared_memory.SharedMemory(create=True, size=8); memory.close(); memory.unlink()
    print(concurrent.futures.ProcessPoolExecutor(1).submit(abs, -1).result())
    print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, os.environ["USER"], os.environ["LOGNAME"])
    print(pwd.getpwuid(os.getuid()).pw_dir == os.environ["HOME"] == os.path.expanduser("~"))
    print(socket.getservbyname("https"), socket.getprotobyname("udp"))
    os.environ.pop("TMPDIR"); print(tempfile.mkdtemp()[:5])
"""
    lines = await programs.output(PYTHON, "game.py", files={"game.py": script.encode()})
    assert lines == ["1", "server server server server", "True", "443 17", "/tmp/"]


async def test_programs_find_the_settings_of_the_machine(programs: Programs) -> None:
    settings = [path for path in SETTINGS if Path(path).exists()]
    assert len(settings) > 1
    command = ("sh", "-c", CHECKSUMS, "sh", *settings)
    machine = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert await programs.output(*command) == machine.splitlines()


@needs_node
async def test_node_has_a_user_and_sees_its_memory_limit(programs: Programs) -> None:
    script = """
const user = require("os").userInfo();
console.log(user.username, user.homedir == process.env.HOME);
console.log(process.constrainedMemory() / 1048576);
console.log(require("v8").getHeapStatistics().heap_size_limit / 1048576);
"""
    user, limit, heap = await programs.output("node", "-e", script)
    assert user == "server true"
    if programs.has_memory_limit:
        assert float(limit) == MEMORY_MB
        assert float(heap) < MEMORY_MB


@needs_java
async def test_java_of_the_system_sees_its_memory_limit(programs: Programs, tmp_path: Path) -> None:
    source = tmp_path / "Game.java"
    source.write_text(JAVA)
    subprocess.run(["javac", str(source)], check=True)
    files = {"Game.class": source.with_suffix(".class").read_bytes()}
    place, heap, uuid = await programs.output("java", "Game", files=files)
    assert (place, uuid) == ("/tmp server", "36")
    if programs.has_memory_limit:
        assert int(heap) < MEMORY_MB


async def test_control_groups_show_only_the_own_run_and_are_read_only(programs: Programs) -> None:
    if not programs.has_memory_limit:
        pytest.skip("this machine has no control group of memory")
    script = (
        "find /sys -name 'hosting-*'; cut -d: -f3 /proc/self/cgroup | grep hosting-; "
        "find /sys -writable -type f; for f in $(find /sys -name cgroup.procs); do "
        "echo 0 > $f && echo wrote $f; done 2>/dev/null; echo over"
    )
    assert await programs.output("sh", "-c", script) == ["over"]
