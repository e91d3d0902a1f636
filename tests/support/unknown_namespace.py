"""Service with a feed file for a namespace that the control plane does not know. The namespace
claims a domain, so other claims of the domain fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.data_plane_service import document
from tests.support.databases import KINDS_OF_OWN_SERVICES, Databases
from tests.support.full_service import FullService, running

CLAIMED: Final = "claimed.example.com"
UNKNOWN_NAMESPACE: Final = document(access={"domains": [CLAIMED]})


@pytest.fixture(scope="module", params=KINDS_OF_OWN_SERVICES)
def full_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, databases: Databases
) -> Iterator[FullService]:
    folder: Path = tmp_path_factory.mktemp("s")
    feed_file = folder / "feed.json"
    feed_file.write_text(json.dumps({"namespaces": [UNKNOWN_NAMESPACE]}))
    with running(
        FullService(folder, databases.url(request.param)), "--feed", str(feed_file)
    ) as service:
        yield service
