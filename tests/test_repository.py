from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tracked_files import ROOT, relative, tracked

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_TRANSPORT_LINES = 2_500
"""Of `pyservice/edge` and `pyservice/rpc` together. Connections are the task of the front."""
MAX_PLAIN_READER_LINES = 450
"""Of the front's own reader of HTTP/1.1. Hyper reads everything else."""

# Files over the limit, with the reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {
    "native/keeper/tests/runs/system_calls.rs:forbidden_calls": (
        "a table with a line for each refused system call and its documented error"
    ),
    "native/core/src/journal_event.rs:event_bytes_never_change": "one row for each event kind with its bytes",
    "pyservice/app/control_plane.py:_operations": "one constructor call for each group of operations",
    "pyservice/control/operations.py:operation_table": "one row for each operation",
    "pyservice/storage/migrations/versions/0001_first_tables.py:upgrade": "a list of tables, one after the other",
}

# The only importers of each library.
ONE_IMPORTER = {
    "pyservice._native": (
        "pyservice/auth/bearer_token.py",
        "pyservice/data_formats.py",
        "pyservice/dataplane/native.py",
        "pyservice/runtime/adapter_watch.py",
        "pyservice/runtime/adapters.py",
        "pyservice/runtime/filesystem.py",
        "pyservice/schema/validation.py",
        "pyservice/transport/native.py",
    ),
    "grpc": ("pyservice/rpc",),
    "sqlalchemy": ("pyservice/storage/",),
    "asyncpg": ("pyservice/storage/",),
    "prometheus_client": ("pyservice/observability/metrics.py",),
    "os.environ": ("pyservice/settings/",),
    "structlog": ("pyservice/observability/logging.py",),
    "yaml": ("pyservice/kubernetes/cluster_access.py",),
}


def is_generated(path: Path) -> bool:
    return relative(path).startswith(("pyservice/pb/", "native/matchmaker/src/contract.rs"))


def python_files() -> list[Path]:
    return [path for path in tracked("*.py", "*.pyi") if not is_generated(path)]


def names_imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def test_layers_hold_from_the_command_line_to_the_contract() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_single_importer_rule_holds_for_each_library() -> None:
    strays = []
    for path in python_files():
        name = relative(path)
        if not name.startswith("pyservice/"):
            continue
        for imported in set(names_imported(ast.parse(path.read_text()))):
            for library, homes in ONE_IMPORTER.items():
                is_it = imported == library or imported.startswith(library + ".")
                if is_it and not name.startswith(homes):
                    strays.append(f"{name} imports {imported}; only {homes} may")
    assert not strays, "\n".join(sorted(strays))


# Forbidden dependencies of a crate, direct and transitive, outside of tests.
RUST_LAYERS = {
    "hosting-core": {"pyo3", "tokio", "libc", "rustix", "hosting-journal", "rand", "getrandom"},
    "hosting-journal": {"pyo3", "tokio", "hosting-core"},
}


@pytest.mark.parametrize("crate", RUST_LAYERS)
def test_crate_dependencies_stay_within_its_layer(crate: str) -> None:
    tree = subprocess.run(
        ["cargo", "tree", "--offline", "--edges=normal", "--prefix=none", f"--package={crate}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    dependencies = {line.split()[0] for line in tree.splitlines() if line}
    assert not dependencies & RUST_LAYERS[crate]


def test_only_the_bindings_name_pyo3() -> None:
    manifests = [path for path in tracked("*Cargo.toml") if "pyo3" in path.read_text()]
    assert [relative(path) for path in manifests] == ["native/bindings/Cargo.toml"]


def long_files() -> dict[str, int]:
    lines = {
        relative(path): len(path.read_text().splitlines())
        for path in tracked("*.py", "*.rs", "*.js")
        if not is_generated(path)
    }
    return {name: count for name, count in lines.items() if count > MAX_FILE_LINES}


def long_python_functions() -> dict[str, int]:
    long = {}
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{relative(path)}:{node.name}"] = lines
    return long


def long_rust_functions() -> dict[str, int]:
    opening = re.compile(r"^(\s*)(?:pub(?:\([^)]*\))? )?(?:const |unsafe |extern \"C\" )*fn (\w+)")
    long = {}
    for path in tracked("native/*.rs"):
        start: tuple[str, str, int] | None = None
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if start is None and (match := opening.match(line)) and not line.rstrip().endswith(";"):
                start = (match[1], match[2], number)
            if (
                start
                and line.startswith(start[0] + "}")
                and len(line.rstrip()) == len(start[0]) + 1
            ):
                if number - start[2] + 1 > MAX_FUNCTION_LINES:
                    long[f"{relative(path)}:{start[1]}"] = number - start[2] + 1
                start = None
            elif start and number == start[2] and line.rstrip().endswith("}"):
                start = None
    return long


def test_size_limits_hold_for_all_but_the_listed_exceptions() -> None:
    over_limit = [
        (LONG_FILES, long_files()),
        (LONG_FUNCTIONS, {**long_python_functions(), **long_rust_functions()}),
    ]
    for exceptions, long in over_limit:
        unlisted = [f"{place}: {lines} lines" for place, lines in long.items()]
        unlisted = [text for text in unlisted if text.rpartition(":")[0] not in exceptions]
        assert not unlisted, "split these, or list them with a reason: " + "; ".join(unlisted)
        stale = exceptions.keys() - long.keys()
        assert not stale, "these are within the limit; drop their exceptions: " + "; ".join(stale)
        assert all(len(reason) > 20 for reason in exceptions.values())


def test_python_transports_stay_small() -> None:
    files = tracked("pyservice/edge/*.py", "pyservice/rpc/*.py")
    lines = sum(len(path.read_text().splitlines()) for path in files)
    assert 0 < lines <= MAX_TRANSPORT_LINES


def test_own_http_reader_is_small() -> None:
    tests = "native/front/src/plain_requests/plain_request/"
    files = [
        path
        for path in tracked("native/front/src/plain_requests/*.rs")
        if not relative(path).startswith(tests)
    ]
    assert files
    code = [path.read_text().partition("#[cfg(test)]")[0] for path in files]
    assert sum(len(text.splitlines()) for text in code) <= MAX_PLAIN_READER_LINES


def test_generated_code_matches_the_proto_files() -> None:
    result = subprocess.run(
        [sys.executable, "proto/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_token_literal_is_in_the_tree() -> None:
    token = re.compile(rb"\b(?:cloud|env|pub|dev|lobby|player|link)_[A-Za-z0-9_-]{40,}")
    tokens = [
        f"{relative(path)}: {match.group()[:16]!r}…"
        for path in tracked()
        for match in token.finditer(path.read_bytes())
        if re.search(rb"[A-Z]", match.group()) and re.search(rb"[0-9]", match.group())
    ]
    assert not tokens, "tokens are secrets; make them at run time: " + "; ".join(tokens)


def test_no_forbidden_module_names() -> None:
    vague = {"utils", "helpers", "common", "manager", "base", "misc", "v2", "tools"}
    named = [relative(path) for path in tracked("*.py", "*.rs") if path.stem in vague]
    assert not named


def test_missing_tool_checks_name_an_install_command() -> None:
    result = subprocess.run(
        ["/bin/bash", "scripts/check-tools"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2,
        env={"PATH": "/nonexistent", "PYTHON": "python3.11"},
        check=False,
    )
    assert result.returncode != 0
    assert result.stderr.count("missing:") >= 3
    assert result.stderr.count("install:") == result.stderr.count("missing:")


def test_native_module_is_optimized() -> None:
    from pyservice import _native

    assert _native.build_profile in ("quick", "release"), "build with `make build`"


@pytest.mark.parametrize("target", ["wheel", "bench"])
def test_shipped_and_measured_files_are_release_builds(target: str) -> None:
    words = ["make", "--dry-run", "--always-make", target, "PROFILE=quick"]
    commands = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--profile release" in commands
    assert "--profile quick" not in commands


def test_shared_helpers_of_tests_are_in_support() -> None:
    """A helper is below or above its importers, and no module imports a test module."""
    modules = {relative(path)[:-3].replace("/", "."): path for path in tracked("tests/*.py")}
    strays = []
    for importer in modules.values():
        for imported in set(names_imported(ast.parse(importer.read_text()))) & modules.keys():
            helper = modules[imported]
            folders = (helper.parent, importer.parent)
            is_near = folders[0].is_relative_to(folders[1]) or folders[1].is_relative_to(folders[0])
            is_shared = helper.parent == ROOT / "tests" / "support" or is_near
            if helper.name.startswith("test_") or not is_shared:
                strays.append(f"{relative(importer)} imports {relative(helper)}")
    assert not strays, "\n".join(sorted(strays))
