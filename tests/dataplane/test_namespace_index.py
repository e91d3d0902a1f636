"""Lookup of namespaces by id, name and token."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest

from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from tests.support.namespace_configurations import (
    GAME_ID,
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    VERSION_ID,
    configuration,
)

RAW_ID = raw_id(NAMESPACE_ID)
DIGEST = hashlib.sha256(b"env_x").digest()
FULL = {
    "access": {"domains": ["a.example"]},
    "environment_tokens": [{"token_id": VERSION_ID, "sha256": b64encode(DIGEST).decode()}],
}


@pytest.fixture
def index() -> NamespaceIndex:
    filled = NamespaceIndex()
    filled.put(configuration(**FULL))
    assert filled.native.of_host("a.example") == RAW_ID
    assert filled.native.of_service_token(DIGEST) == RAW_ID
    return filled


def test_find_by_id_or_names(index: NamespaceIndex) -> None:
    for name in (NAMESPACE_ID, "arena/prod"):
        entry = index.find(name)
        assert entry is not None
        assert entry.namespace_id == RAW_ID
    for name in ("prod", "arena", "arena/", "/prod", "other/prod", OTHER_NAMESPACE_ID, ""):
        assert index.find(name) is None


def test_namespaces_in_game(index: NamespaceIndex) -> None:
    index.put(configuration(namespace_id=OTHER_NAMESPACE_ID, name_id="staging"))
    for text in ("arena", GAME_ID):
        assert [one.name for one in index.in_game(text)] == ["prod", "staging"]
    index.remove(RAW_ID)
    assert [one.name for one in index.in_game("arena")] == ["staging"]
    index.remove(raw_id(OTHER_NAMESPACE_ID))
    assert index.in_game("arena") == index.in_game(GAME_ID) == []


def test_replacement_and_removal_update_all_indexes(index: NamespaceIndex) -> None:
    labels = index.labels()
    index.put(configuration(name_id="renamed"))
    assert labels == {RAW_ID: "arena/prod"}, "labels are a copy"
    assert index.labels() == {RAW_ID: "arena/renamed"}
    assert (len(index), index.find("arena/prod")) == (1, None)
    for _ in range(2):
        assert index.native.of_host("a.example") is None
        assert index.native.of_service_token(DIGEST) is None
        index.put(configuration(**FULL))
        index.remove(RAW_ID)
        index.remove(RAW_ID)
    assert (len(index), index.labels(), index.is_known(RAW_ID)) == (0, {}, False)
    with pytest.raises(ServiceError) as caught:
        index.resolved(RAW_ID)
    assert caught.value.code == "TOKEN_REVOKED"
