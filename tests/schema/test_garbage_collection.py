from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pyservice.schema import json_text
from pyservice.schema.json_text import LARGE_BYTES, garbage_collection_paused


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.enable()


def test_collection_pauses_within_the_block_and_resumes() -> None:
    with garbage_collection_paused():
        assert not gc.isenabled()
        with garbage_collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), garbage_collection_paused():
        raise KeyError
    assert gc.isenabled()


def test_disabled_collector_stays_disabled() -> None:
    gc.disable()
    with garbage_collection_paused():
        pass
    assert not gc.isenabled()


def test_parsing_many_lists_causes_few_collections() -> None:
    collections: list[object] = []

    def note(phase: str, _: object) -> None:
        if phase == "start":
            collections.append(phase)

    text = b'{"a":[' + b",".join([b"[]"] * 100_000) + b"]}"
    assert len(text) > LARGE_BYTES
    gc.collect()
    gc.callbacks.append(note)
    try:
        value = json_text.parse(text)
        assert json_text.member_texts(text)["a"] == text[5:-1]
    finally:
        gc.callbacks.remove(note)
    assert len(value["a"]) == 100_000
    # One collection may be due after each pause; without pauses there are hundreds.
    assert len(collections) <= 6
    with pytest.raises(json_text.JsonTextError):
        json_text.parse(text[:-1])
    assert gc.isenabled()
