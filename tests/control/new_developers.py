"""Developers with new groups, and unique display names."""

from __future__ import annotations

from uuid import uuid4

from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records


def unique(text: str = "Game") -> str:
    return f"{text} {uuid4().hex[:12]}"


async def new_developer(owner: Developer, records: Records) -> tuple[Developer, str]:
    """Returns a developer with a new group, so that the group's lists are short."""
    identity_id, (group_id,) = await records.identity("Fresh")
    token, _ = await records.cloud_token(identity_id)
    return Developer(owner.full_service, owner.client, token), group_id
