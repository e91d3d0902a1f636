"""Programs that use what Python, Node and Java expect of a machine: users, memory limits and shared memory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

MEMORY_MB: Final = 320
USER: Final = "server"

PYTHON_GAME: Final = """
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
PYTHON_LINES: Final = ["1", " ".join([USER] * 4), "True", "443 17", "/tmp/"]
NODE_GAME: Final = """
const user = require("os").userInfo();
console.log(user.username, user.homedir == process.env.HOME);
console.log(process.constrainedMemory() / 1048576);
console.log(require("v8").getHeapStatistics().heap_size_limit / 1048576);
"""
_JAVA_GAME: Final = """
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


def java_class(folder: Path) -> bytes:
    """Compiles the program of Java, and returns `Game.class`."""
    source = folder / "Game.java"
    source.write_text(_JAVA_GAME)
    subprocess.run(["javac", str(source)], check=True)
    return source.with_suffix(".class").read_bytes()


def check_node_lines(lines: list[str], *, has_memory_limit: bool) -> None:
    user, limit, heap = lines
    assert user == f"{USER} true"
    if has_memory_limit:
        assert float(limit) == MEMORY_MB
        assert float(heap) < MEMORY_MB


def check_java_lines(lines: list[str], *, has_memory_limit: bool) -> None:
    place, heap, uuid = lines
    assert (place, uuid) == (f"/tmp {USER}", "36")
    if has_memory_limit:
        assert int(heap) < MEMORY_MB
