"""Deletion of Pods, and the finalizer with which a stopped Pod waits for the report of its end.

A node removes a deleted Pod as soon as its program has ended. Without the finalizer, its exit code
would be lost while no control plane runs.
"""

from __future__ import annotations

from typing import Final

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.kubernetes.api import ApiError, Collection, KubernetesApi, Object, pause_after
from pyservice.observability.logging import get_logger

REPORT_END: Final = "hosting/report-end"

_RETRIES_S: Final = doubling(0.1, 5.0)

_log = get_logger("kubernetes")


async def keep_until_reported(
    api: KubernetesApi, pods: Collection, name: str, uid: str
) -> Object | None:
    """Adds the finalizer to a Pod before its deletion, and returns the Pod as it is stored.

    Returns None if the cluster refuses the change. The deletion must go on then. Raises ApiError.
    """
    try:
        return await _change_finalizers(api, pods, name, uid, "finalizers")
    except ApiError as error:
        if error.is_final or error.status == 409:
            return None
        raise


async def delete_unneeded(
    api: KubernetesApi, pods: Collection, name: str, uid: str, *, is_kept: bool = False
) -> None:
    """Deletes a Pod with a reported end, or one that nothing needs. Repeats this until it succeeds.

    `is_kept`: it has the finalizer. Does not wait for the node of the Pod, which may be away.
    """
    backoff = Backoff(_RETRIES_S)
    while True:
        try:
            await _delete(api, pods, name, uid, is_kept=is_kept)
            return
        except ApiError as error:
            if not backoff.failures:
                _log.warning("Pod is not deleted yet", id=name, error=str(error))
            await pause_after(error, backoff.next_s())


async def _delete(
    api: KubernetesApi, pods: Collection, name: str, uid: str, *, is_kept: bool
) -> None:
    """Raises ApiError."""
    if await api.delete(pods, name, uid=uid) and is_kept:
        try:
            await _change_finalizers(api, pods, name, uid, "$deleteFromPrimitiveList/finalizers")
        except ApiError as error:
            if not error.is_of_absent_object:
                raise


async def _change_finalizers(
    api: KubernetesApi, pods: Collection, name: str, uid: str, directive: str
) -> Object:
    # With the UID, the change of another Pod with this name is refused.
    return await api.patch(pods, name, {"metadata": {"uid": uid, directive: [REPORT_END]}})
