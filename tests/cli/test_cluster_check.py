"""`pyservice check-config` beside a cluster: access to the API server, and rights of the account."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_service import cluster_settings
from tests.support.command_line import run
from tests.support.kubernetes_api_server import ApiServer, open_server
from tests.support.node_authority import NodeAuthority

pytestmark = pytest.mark.anyio


async def check(server: ApiServer, folder: Path) -> subprocess.CompletedProcess[str]:
    certificates = NodeAuthority(folder / "authority").issue_to_service(folder / "certificates")
    settings = cluster_settings(server, folder, certificates)
    words = [f"--set={name}={text(value)}" for name, value in flat(settings)]
    return await asyncio.to_thread(run, folder / "data", "check-config", *words)


def flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        inner = flat(value, f"{prefix}{name}.") if isinstance(value, dict) else None
        found += [(f"{prefix}{name}", value)] if inner is None else inner
    return found


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.full
async def test_account_with_all_rights_is_ok(tmp_path: Path) -> None:
    async with open_server() as server:
        result = await check(server, tmp_path)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


async def test_missing_rights_are_one_problem(tmp_path: Path) -> None:
    async with open_server() as server:
        server.forbidden = {("create", "pods"), ("list", "nodes")}
        result = await check(server, tmp_path)
    assert result.returncode == 1
    assert "may not create pods in namespace games, list nodes: give it the Role" in result.stderr


@pytest.mark.full
async def test_cluster_that_is_away_is_a_warning(tmp_path: Path) -> None:
    async with open_server() as server:
        server.is_away = True
        result = await check(server, tmp_path)
    assert (result.returncode, result.stdout) == (0, "ok\n")
    assert "warning: rights in the cluster are not checked: " in result.stderr
