"""Conformance cases of the helpers in `clients/`, each once more with lost responses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients import conformance
from tests.clients.conformance import CASES, DriverExited, run_case
from tests.clients.python_mutations import MUTATIONS, write_mutation
from tests.clients.service import developer as developer
from tests.clients.service import full_service as full_service
from tests.clients.service import game as game
from tests.support.browser import CHROMIUM
from tests.support.full_service import Developer
from tests.support.tracked_files import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.full]

BUILT = ROOT / "build/clients"
DRIVERS = {
    "python": (sys.executable, "-W", "error", str(ROOT / "clients/python/conformance_driver.py")),
    "typescript": ("node", str(BUILT / "typescript/conformance-driver.js")),
    "csharp": ("mono", str(BUILT / "csharp/ConformanceDriver.exe")),
    "cpp": (str(BUILT / "cpp/conformance_driver"),),
}
BROWSER_MODULE = BUILT / "typescript/conformance-player.js"
PLAYER_CASES = [
    name
    for name, case in CASES.items()
    if "server" not in case and not any(step.get("do") == "open_server" for step in case["steps"])
]
PACKAGES = {
    "typescript": "nodejs npm",
    "csharp": "mono-mcs mono-runtime libmono-posix4.0-cil libmono-system-net-http4.0-cil",
    "cpp": "g++ libcurl4-openssl-dev",
}
SMOKE = "find reserves a slot that the lobby server can confirm"


def driver_command(language: str) -> Sequence[str]:
    command = DRIVERS[language]
    if not Path(command[-1]).exists():
        packages = PACKAGES[language]
        pytest.skip(f"no driver: apt-get install {packages}, then `make client-drivers`")
    return command


@pytest.mark.fast
@pytest.mark.parametrize("language", DRIVERS)
async def test_helper_finds_a_slot(developer: Developer, game: Any, language: str) -> None:
    await run_case(SMOKE, developer, game, driver_command(language), is_lossy=False)


@pytest.mark.parametrize("is_lossy", [False, True], ids=["plain", "lossy"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("language", DRIVERS)
async def test_helper(
    developer: Developer, game: Any, language: str, name: str, is_lossy: bool
) -> None:
    await run_case(name, developer, game, driver_command(language), is_lossy)


# The same helper meets lost responses in Node.
@pytest.mark.parametrize(
    "is_lossy", [False, pytest.param(True, marks=pytest.mark.proof)], ids=["plain", "lossy"]
)
@pytest.mark.parametrize("name", PLAYER_CASES)
async def test_helper_in_a_browser(
    developer: Developer, game: Any, name: str, is_lossy: bool
) -> None:
    driver_command("typescript")
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    driver = (sys.executable, "-m", "tests.clients.browser_driver", str(BROWSER_MODULE))
    await run_case(name, developer, game, driver, is_lossy)


@pytest.mark.parametrize("name", CASES)
async def test_each_case_fails_without_its_feature(
    developer: Developer, game: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "patience_s", 4.0)
    driver = write_mutation(CASES[name]["feature"], tmp_path)
    with pytest.raises((AssertionError, TimeoutError)):
        await run_case(name, developer, game, (sys.executable, str(driver)), is_lossy=False)


async def test_helper_that_cannot_start_is_not_a_failed_case(
    developer: Developer, game: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MUTATIONS, "find", ("import asyncio\n", "import no_such_module\n"))
    driver = write_mutation("find", tmp_path)
    with pytest.raises(DriverExited, match="exit code 1"):
        await run_case(SMOKE, developer, game, (sys.executable, str(driver)), is_lossy=False)
