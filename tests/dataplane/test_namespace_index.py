"""Lookup of namespaces by id, name and token."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest

from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.errors import ServiceError
from tests.dataplane.configurations import (
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    VERSION_ID,
    configuration,
)

RAW_ID = bytes.fromhex(NAMESPACE_ID.replace("-", ""))
DIGEST = hashlib.sha256(b"env_x").digest()
FULL = {
    "access": {"domains": ["a.example"]},
    "environment_tokens": [{"token_id": VERSION_ID, "sha256": b64encode(DIGEST).decode()}],
    "revoked_token_ids": [VERSION_ID],
}


def test_find_by_id_or_names() -> None:
    index = NamespaceIndex()
    index.put(configuration())
    for name in (NAMESPACE_ID, "arena/prod"):
        found = index.find(name)
        assert found is not None
        assert found.namespace_id == RAW_ID
    for name in ("prod", "arena", "arena/", "/prod", "other/prod", OTHER_NAMESPACE_ID, ""):
        assert index.find(name) is None


def test_replacement_updates_all_indexes() -> None:
    index = NamespaceIndex()
    index.put(configuration(**FULL))
    assert index.namespace_of_host("a.example") == RAW_ID
    assert index.environment_grant(DIGEST) is not None
    assert index.is_revoked(RAW_ID, bytes.fromhex(VERSION_ID.replace("-", "")))
    index.put(configuration(name_id="renamed"))
    assert index.namespace_of_host("a.example") is None
    assert index.environment_grant(DIGEST) is None
    assert not index.is_revoked(RAW_ID, bytes.fromhex(VERSION_ID.replace("-", "")))
    assert index.find("arena/prod") is None
    assert index.labels() == {RAW_ID: "arena/renamed"}
    assert len(index) == 1


def test_removal_clears_all_indexes() -> None:
    index = NamespaceIndex()
    index.put(configuration(**FULL))
    index.remove(RAW_ID)
    index.remove(RAW_ID)
    assert len(index) == 0
    assert index.labels() == {}
    assert index.namespace_of_host("a.example") is None
    assert index.environment_grant(DIGEST) is None
    assert not index.is_known(RAW_ID)
    with pytest.raises(ServiceError) as caught:
        index.resolved(RAW_ID)
    assert caught.value.code == "TOKEN_REVOKED"


def test_labels_are_a_copy() -> None:
    index = NamespaceIndex()
    index.put(configuration())
    labels = index.labels()
    index.remove(RAW_ID)
    assert labels == {RAW_ID: "arena/prod"}
