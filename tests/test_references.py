"""References between files of the repository: pages, anchors and links, and the reference pages
against the proto contract.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from pyservice.pb.errors import TABLE
from pyservice.pb.hosting.v1 import (
    builds_pb2,
    cdn_pb2,
    devices_pb2,
    games_pb2,
    groups_pb2,
    lobby_pb2,
    logs_pb2,
    namespaces_pb2,
    platform_pb2,
    rays_pb2,
    servers_pb2,
    tokens_pb2,
    uploads_pb2,
    versions_pb2,
)
from pyservice.schema.methods import METHODS
from tests.support.doc_pages import headings
from tests.support.tracked_files import ROOT, relative, tracked

REFERENCE = ROOT / "docs" / "reference"
PAGE = re.compile(r"docs/[\w./-]+\.md(?:#[\w-]+)?")
LINK = re.compile(r"\]\(([^)\s:]+\.md)?(?:#([\w-]+))?\)")
WORDS = re.compile(r"\w+")
# The checks themselves contain the patterns.
CHECKS = (Path(__file__), ROOT / "scripts" / "check_prose.py")
SOURCES = (
    *(
        "*.py",
        "*.pyi",
        "*.rs",
        "*.proto",
        "*.md",
        "*.toml",
        "*.js",
        "*.c",
        "*.html",
        "*.yml",
        "*.yaml",
    ),
    *("Makefile", ".ci/*", "scripts/*", "*.in"),
)
# Fewer mean that a pattern or the list of sources no longer finds them.
MIN_REFERENCES = 40
MIN_LINKS = 400
# References to a document that is not in the repository.
OUTSIDE = re.compile(r"\bdecisions? \d|\bdesign: |\bdesign section \d")


# Names in CamelCase, without parts of header names such as `Idempotency-Key`.
NAME = re.compile(r"(?<![\w-])[A-Z]\w*[a-z]\w*")
# Types, and the rows of the event table.
DEFINITION = re.compile(
    r"\b(?:class|struct|enum|trait|type|message) (\w+)|^    \d+ \"\w+\" (\w+)", re.M
)
NAMES_OF_RUST = {"Result"}


@cache
def anchors(path: Path) -> set[str]:
    return headings(path)


@cache
def texts() -> dict[Path, str]:
    texts_of_files = {}
    for path in tracked(*SOURCES):
        texts_of_files[path] = path.read_text()
    return texts_of_files


def is_broken(page: Path, anchor: str) -> bool:
    return not page.is_file() or bool(anchor and anchor not in anchors(page))


def test_every_page_that_a_file_names_exists() -> None:
    broken, count = [], 0
    for path, text in texts().items():
        if path == Path(__file__):
            continue
        for reference in PAGE.findall(text):
            count += 1
            page, _, anchor = reference.partition("#")
            if is_broken(ROOT / page, anchor):
                broken.append(f"{relative(path)}: {reference}")
    assert not broken, "\n".join(broken)
    assert count >= MIN_REFERENCES


def test_every_link_between_pages_resolves() -> None:
    broken, count = [], 0
    for path, text in texts().items():
        if path.suffix != ".md":
            continue
        for target, anchor in LINK.findall(text):
            count += 1
            page = (path.parent / target).resolve() if target else path
            if is_broken(page, anchor):
                broken.append(f"{relative(path)}: {target}#{anchor}")
    assert not broken, "\n".join(broken)
    assert count >= MIN_LINKS


def test_types_that_the_architecture_names_exist() -> None:
    text = re.sub(
        r"^```.*?^```$", "", (ROOT / "docs/architecture.md").read_text(), flags=re.M | re.S
    )
    named = {name for span in re.findall(r"`([^`]+)`", text) for name in NAME.findall(span)}
    code = [text for path, text in texts().items() if path.suffix in (".py", ".rs", ".proto")]
    defined = {name for text in code for pair in DEFINITION.findall(text) for name in pair}
    assert len(named) > 10
    assert not named - defined - NAMES_OF_RUST


def test_no_file_refers_to_a_document_outside_of_the_repository() -> None:
    references = [
        relative(path)
        for path, text in texts().items()
        if path not in CHECKS and OUTSIDE.search(text)
    ]
    assert not references, (
        "name docs/reference/PAGE.md#anchor, or drop the reference: " + ", ".join(references)
    )


def test_interface_page_lists_every_operation() -> None:
    text = (REFERENCE / "interface.md").read_text()
    missing = [
        method.name
        for method in METHODS.values()
        if f"| `{method.name.rpartition('.')[2]}` | `{method.http_method} {method.template}` |"
        not in text
    ]
    assert not missing


@pytest.mark.parametrize(
    "message",
    [
        builds_pb2.Build,
        builds_pb2.BuildSummary,
        cdn_pb2.CreateGameCdnSiteResponse,
        devices_pb2.GetDeviceLinkResponse,
        games_pb2.Game,
        games_pb2.GameSummary,
        games_pb2.RegionSummary,
        groups_pb2.GroupBilling,
        groups_pb2.GroupHandle,
        groups_pb2.GroupSummary,
        lobby_pb2.Lobby,
        lobby_pb2.Port,
        logs_pb2.LobbyRecord,
        logs_pb2.LobbyStopped,
        namespaces_pb2.Namespace,
        namespaces_pb2.CdnNamespaceConfig,
        namespaces_pb2.Domain,
        namespaces_pb2.MatchmakerNamespaceConfig,
        platform_pb2.GetBootstrapResponse,
        platform_pb2.RegionTier,
        rays_pb2.RayMark,
        rays_pb2.RayPerf,
        rays_pb2.RaySpan,
        servers_pb2.Server,
        servers_pb2.ServerPort,
        tokens_pb2.InspectTokenResponse,
        tokens_pb2.TokenRecord,
        uploads_pb2.PresignedRequest,
        versions_pb2.CloudConfig,
        versions_pb2.GameVersion,
        versions_pb2.VersionCdn,
        versions_pb2.VersionDocker,
        versions_pb2.VersionGameMode,
        versions_pb2.VersionMatchmaker,
        versions_pb2.VersionPort,
    ],
)
def test_interface_page_has_every_field_of_a_resource(message: type) -> None:
    words = set(WORDS.findall((REFERENCE / "interface.md").read_text()))
    assert set(message.DESCRIPTOR.fields_by_name) <= words  # type: ignore[attr-defined]


def test_reference_has_every_error_code_with_its_status() -> None:
    documented = {}
    for line in (REFERENCE / "errors.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[1].isdigit():
            for code in re.findall(r"`(\w+)`", cells[0]):
                documented[code] = (int(cells[1]), cells[2].replace("–", ""))
    assert documented == {code: (row.http, row.grpc or "") for code, row in TABLE.items()}


def test_reference_has_every_response_of_edge_guard() -> None:
    page = (REFERENCE / "errors.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| (\d+) \| [^|]* \|$", page, re.MULTILINE)
    source = (ROOT / "native/edge_guard/src/http/exchange.rs").read_text()
    sent = {(code, status) for status, code in re.findall(r'\(\s*(\d+),\s*"([A-Z_]+)",\s', source)}
    assert ("SERVER_LATE", "504") in sent
    assert set(documented) == sent
