"""Check of a cluster by `check-config`: access to the API server, and rights of the account."""

from __future__ import annotations

import asyncio

from pyservice.settings import ConfigurationReport, Settings


def cluster_report(settings: Settings) -> ConfigurationReport:
    if not settings.is_on_cluster:
        return ConfigurationReport([], [])
    # Their imports are slow, and a single machine does not need them.
    from pyservice.app.game_server_placement import cluster_access
    from pyservice.kubernetes.account_rights import missing_rights, rights_sentence
    from pyservice.kubernetes.api import ApiError, KubernetesApi
    from pyservice.kubernetes.cluster_access import NoAccess

    async def review() -> list[str]:
        async with KubernetesApi(cluster_access(settings)) as api:
            return await missing_rights(api, settings.kubernetes)

    try:
        missing = asyncio.run(review())
    except NoAccess as error:
        if settings.kubernetes.kubeconfig is not None:
            return ConfigurationReport([str(error)], [])
        # The service may run in a Pod, and this command elsewhere.
        return _unchecked(error)
    except ApiError as error:
        return _unchecked(error)
    return ConfigurationReport([rights_sentence(missing)] if missing else [], [])


def _unchecked(error: Exception) -> ConfigurationReport:
    return ConfigurationReport([], [f"rights in the cluster are not checked: {error}"])
