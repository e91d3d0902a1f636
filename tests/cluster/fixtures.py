"""Fixtures for tests in several folders: one cluster for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.cluster_files import SERVICE_IMAGE, stale_image, unsupported
from tests.cluster.cluster_placement import ClusterPlacement


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Cluster of two nodes that all tests share. A test that breaks a node repairs the node."""
    reason = unsupported()
    if reason is not None:
        pytest.skip(f"a cluster needs root, a control group and programs: {reason}")
    cluster = Cluster()
    try:
        try:
            cluster.start()
        except Exception as error:
            error.add_note(cluster.logs())
            raise
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def service_image() -> str:
    """Name of the image of the service, which is made from the current sources."""
    remedy = stale_image()
    assert remedy is None, remedy
    return SERVICE_IMAGE


@pytest.fixture(scope="session")
def cluster_placement(
    cluster: Cluster, service_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterPlacement]:
    """The service of the stories in `tests/placement`."""
    placement = ClusterPlacement(cluster, service_image, tmp_path_factory.mktemp("placement"))
    try:
        placement.install()
        yield placement
    finally:
        placement.remove()
