"""Seccomp profile of game servers: never looser than that of container runtimes, the same in
containers, and as documented. The keeper's tests prove the errors for archives.
"""

from __future__ import annotations

import errno
import json
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.runtime.isolation_trials import choose_container_runtime
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from tests.support.bare_containers import output_lines, start_container
from tests.support.container_images import needs_oci_runtime

ROOT: Final = Path(__file__).parents[2]
PROFILE: Final = json.loads((ROOT / "pyservice/runtime/seccomp_profile.json").read_text())
ALLOW: Final = "SCMP_ACT_ALLOW"
REFUSE: Final = "SCMP_ACT_ERRNO"
CONDITIONAL: Final = {"clone", "socket", "personality"}
NAMESPACES: Final = 0x7E020000
PERSONALITIES: Final = {0, 8, 0x20000, 0x20008, 0xFFFFFFFF}
AF_VSOCK: Final = 40

ATTEMPTS: Final = {
    # Name: number on x86-64, number on arm64, first argument, error.
    "unshare": (272, 97, 0, errno.EPERM),
    "setns": (308, 268, 0, errno.EPERM),
    "mount": (165, 40, 0, errno.EPERM),
    "open_tree": (428, 428, 0, errno.EPERM),
    "keyctl": (250, 219, 0, errno.EPERM),
    "add_key": (248, 217, 0, errno.EPERM),
    "request_key": (249, 218, 0, errno.EPERM),
    "io_uring_setup": (425, 425, 0, errno.EPERM),
    "userfaultfd": (323, 282, 0, errno.EPERM),
    "bpf": (321, 280, 0, errno.EPERM),
    "perf_event_open": (298, 241, 0, errno.EPERM),
    "ptrace": (101, 117, 0, errno.EPERM),
    "process_vm_readv": (310, 270, 0, errno.EPERM),
    "init_module": (175, 105, 0, errno.EPERM),
    "kexec_load": (246, 104, 0, errno.EPERM),
    "clone with a user namespace": (56, 220, 0x10000011, errno.EPERM),
    "clone with a network namespace": (56, 220, 0x40000011, errno.EPERM),
    "clone3": (435, 435, 0, errno.ENOSYS),
    "socket of AF_PACKET": (41, 198, 17, errno.EPERM),
    "socket of AF_ALG": (41, 198, 38, errno.EPERM),
    "socket of AF_VSOCK": (41, 198, AF_VSOCK, errno.EPERM),
    "socket of AF_AX25": (41, 198, 3, errno.EPERM),
    "personality without random addresses": (135, 92, 0x40000, errno.ENOSYS),
}


def rules(action: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for rule in PROFILE["syscalls"]:
        if rule["action"] == action:
            for name in rule["names"]:
                yield name, rule.get("args", [])


def test_profile_allows_no_call_that_container_runtimes_refuse() -> None:
    assert PROFILE["defaultAction"] == REFUSE
    path = Path(__file__).with_name("container_default_calls.txt")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    default = set(" ".join(lines).split())
    assert {name for name, conditions in rules(ALLOW) if not conditions} <= default
    assert {name for name, conditions in rules(ALLOW) if conditions} == CONDITIONAL


def test_conditions_are_as_strict_as_those_of_container_runtimes() -> None:
    by_name: dict[str, list[Any]] = {name: [] for name in CONDITIONAL}
    for name, conditions in rules(ALLOW):
        if conditions:
            by_name[name].append(conditions)
    [[clone]] = by_name["clone"]
    assert (clone["index"], clone["op"]) == (0, "SCMP_CMP_MASKED_EQ")
    assert (clone["value"], clone["valueTwo"]) == (NAMESPACES, 0)
    for name in ("socket", "personality"):
        for first, *_ in by_name[name]:
            assert (first["index"], first["op"]) == (0, "SCMP_CMP_EQ")
    assert {first["value"] for first, *_ in by_name["personality"]} == PERSONALITIES
    assert AF_VSOCK not in {first["value"] for first, *_ in by_name["socket"]}


def test_no_call_is_both_allowed_and_refused() -> None:
    allowed = {name for name, conditions in rules(ALLOW) if not conditions}
    refused = [name for name, conditions in rules(REFUSE) if not conditions]
    assert len(set(refused)) == len(refused)
    assert not allowed & set(refused)
    assert not (allowed | set(refused)) & CONDITIONAL


def test_documentation_lists_the_refused_calls() -> None:
    text = (ROOT / "docs/isolation.md").read_text()
    _, section = text.split("## Forbidden system calls\n", 1)
    table = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("| `")]
    documented = {
        name: row.split("|")[2].strip(" `")
        for row in table
        for name in re.findall(r"`([a-z0-9_]+)`", row.split("|")[1])
    }
    refused = {name for name, conditions in rules(REFUSE) if not conditions}
    assert refused == {name for name in documented if documented[name] == "EPERM"} - CONDITIONAL
    assert {rule.get("errnoRet") for rule in PROFILE["syscalls"]} == {None, errno.EPERM}
    assert PROFILE["defaultErrnoRet"] == errno.ENOSYS


@pytest.mark.full
@pytest.mark.anyio
@needs_oci_runtime
async def test_forbidden_calls_in_a_container_have_their_documented_error(tmp_path: Path) -> None:
    runtime, problem = await choose_container_runtime(None, KEEPER_BINARY, tmp_path)
    assert runtime is not None, problem
    which = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    calls = [(attempt[which], attempt[2]) for attempt in ATTEMPTS.values()]
    script = "".join(
        f'print(syscall({number}, {first}, 3, 0, 0, 0) < 0 ? $! + 0 : 0, " ");'
        for number, first in calls
    )
    command = ("/usr/bin/perl", "-e", f"$| = 1; {script} print qq(\\n); sleep 1000")
    run = start_container(runtime, tmp_path / "container", *command)
    try:
        [line] = await output_lines(run)
        errors = dict(zip(ATTEMPTS, map(int, line.split()), strict=True))
        assert errors == {name: attempt[3] for name, attempt in ATTEMPTS.items()}
    finally:
        run.stop(0)
