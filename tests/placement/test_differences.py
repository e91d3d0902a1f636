"""The documents describe each difference between the placements, and no other one."""

from __future__ import annotations

from tests.placement.differences import DIFFERENCES
from tests.support.doc_pages import table_of


def test_table_of_the_documents_has_the_differences_of_the_stories() -> None:
    rows = [
        [one.topic, one.local.sentence, one.kubernetes.sentence] for one in DIFFERENCES.values()
    ]
    assert table_of("reference/servers.md", "placements") == rows
