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
    held = NamespaceIndex()
    held.put(configuration())
    for name in (NAMESPACE_ID, "arena/prod"):
        found = held.find(name)
        assert found is not None
        assert found.namespace_id == RAW_ID
    for name in ("prod", "arena", "arena/", "/prod", "other/prod", OTHER_NAMESPACE_ID, ""):
        assert held.find(name) is None


def test_replacement_updates_all_indexes() -> None:
    held = NamespaceIndex()
    held.put(configuration(**FULL))
    assert held.namespace_of_host("a.example") == RAW_ID
    assert held.environment_grant(DIGEST) is not None
    assert held.is_revoked(RAW_ID, bytes.fromhex(VERSION_ID.replace("-", "")))
    held.put(configuration(name_id="renamed"))
    assert held.namespace_of_host("a.example") is None
    assert held.environment_grant(DIGEST) is None
    assert not held.is_revoked(RAW_ID, bytes.fromhex(VERSION_ID.replace("-", "")))
    assert held.find("arena/prod") is None
    assert held.labels() == {RAW_ID: "arena/renamed"}
    assert len(held) == 1


def test_removal_clears_all_indexes() -> None:
    held = NamespaceIndex()
    held.put(configuration(**FULL))
    held.remove(RAW_ID)
    held.remove(RAW_ID)
    assert len(held) == 0
    assert held.labels() == {}
    assert held.namespace_of_host("a.example") is None
    assert held.environment_grant(DIGEST) is None
    assert not held.is_known(RAW_ID)
    with pytest.raises(ServiceError) as caught:
        held.resolved(RAW_ID)
    assert caught.value.code == "TOKEN_REVOKED"


def test_labels_are_a_copy() -> None:
    held = NamespaceIndex()
    held.put(configuration())
    labels = held.labels()
    held.remove(RAW_ID)
    assert labels == {RAW_ID: "arena/prod"}
