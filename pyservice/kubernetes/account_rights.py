"""Rights that the account of the service needs in the cluster, and a review of those that it lacks.

The chart grants these rights and no others. A test compares both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from pyservice.kubernetes.api import NODES, Collection, KubernetesApi, Object, pods_of
from pyservice.settings.kubernetes_section import KubernetesSettings

REVIEWS: Final = Collection("selfsubjectaccessreviews", group="authorization.k8s.io")
"""Each account may create these reviews, which are not stored."""


class Right(NamedTuple):
    verb: str
    collection: Collection
    name: str = ""
    """Name of the only object. Empty: all objects of the collection."""

    def __str__(self) -> str:
        return f"{self.verb} {self.collection}"


def needed_rights(settings: KubernetesSettings) -> Sequence[Right]:
    pods = pods_of(settings.namespace)
    owner = Right("get", owners_of(settings.namespace), owner_name(settings))
    return (
        *(Right(verb, pods) for verb in ("create", "delete", "get", "list", "patch", "watch")),
        owner,
        *(Right(verb, NODES) for verb in ("list", "watch")),
    )


def owners_of(namespace: str) -> Collection:
    return Collection("configmaps", namespace)


def owner_name(settings: KubernetesSettings) -> str:
    """Returns the name of the object that owns the Pods of the service."""
    return f"{settings.service_name}-game-servers"


async def missing_rights(api: KubernetesApi, settings: KubernetesSettings) -> list[str]:
    """Returns all rights that the account lacks, such as "create pods in namespace games".

    Raises ApiError.
    """
    rights = needed_rights(settings)
    allowed = await asyncio.gather(*(_is_allowed(api, right) for right in rights))
    return [str(right) for right, is_allowed in zip(rights, allowed, strict=True) if not is_allowed]


async def _is_allowed(api: KubernetesApi, right: Right) -> bool:
    collection = right.collection
    attributes = {
        "verb": right.verb,
        "group": collection.group,
        "resource": collection.plural,
        "namespace": collection.namespace,
        "name": right.name,
    }
    review: Object = {
        "apiVersion": f"{REVIEWS.group}/{REVIEWS.version}",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.create(REVIEWS, review)
    return bool((answer.get("status") or {}).get("allowed"))


def rights_sentence(missing: Sequence[str]) -> str:
    return (
        f"the account of the service may not {', '.join(missing)}: give it the Role and the "
        "ClusterRole of the chart"
    )
