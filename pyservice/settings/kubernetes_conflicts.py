"""Problems of the settings for game servers on Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

from pyservice.settings.kubernetes_section import CERTIFICATE_FILES
from pyservice.settings.model import Settings

_REQUIRED: Final = {
    "runner_image": (
        "give the image in which builds run, such as registry.example.com/hosting/runner:1.0"
    ),
    "service_image": "give the image of this service, which fetches builds on their nodes",
    "certificates": (
        "give the folder with ca.crt, tls.crt and tls.key that `pyservice certificates` or "
        "cert-manager writes"
    ),
}
"""Remedies of required settings by name."""
_CONTEXT: Final = "must be set beside runtime.placement kubernetes"


def kubernetes_conflicts(
    settings: Settings, wrong: Set[str] = frozenset()
) -> Iterator[tuple[list[str], str]]:
    """Yields the problems of `runtime.placement` `kubernetes`, each with the setting's location.

    Settings in the invalid sections `wrong` are not judged.
    """
    if "runtime" in wrong or settings.runtime.placement != "kubernetes":
        return
    yield from _other_kinds(settings)
    if "lobby_api_url" not in wrong and settings.lobby_api_url is None:
        yield (
            ["lobby_api_url"],
            f"{_CONTEXT}: give the URL at which Pods reach the API, such as "
            "http://hosting.hosting.svc:8080",
        )
    if "domains" not in wrong and settings.domains.job is not None:
        yield (
            ["domains", "job"],
            "does not work beside runtime.placement kubernetes, because the host name of a port does not "
            "say which node serves the port: remove it, and each port has a number at its node",
        )
    for name in ("http", "https"):
        if "edge" not in wrong and getattr(settings.edge, name) is not None:
            yield (
                ["edge", name],
                "does not work beside runtime.placement kubernetes, because each port has a number at its node and "
                "no host name: remove it",
            )
    if "kubernetes" in wrong:
        return
    section = settings.kubernetes
    for name, remedy in _REQUIRED.items():
        if getattr(section, name) is None:
            yield ["kubernetes", name], f"{_CONTEXT}: {remedy}"
    yield from _unreadable_files(settings)
    if "regions" not in wrong:
        names = {region.name_id for region in settings.regions}
        for number, nodes in enumerate(section.regions):
            if nodes.region not in names:
                location = ["kubernetes", "regions", str(number), "region"]
                yield location, f"{nodes.region} is not in regions: add it there, or correct it"


def _other_kinds(settings: Settings) -> Iterator[tuple[list[str], str]]:
    others = [kind for kind in settings.runtime.kinds if kind != "archive"]
    if others:
        yield (
            ["runtime", "kinds"],
            f"has {', '.join(others)}, which do not run beside runtime.placement kubernetes: "
            "remove them",
        )


def _unreadable_files(settings: Settings) -> Iterator[tuple[list[str], str]]:
    section = settings.kubernetes
    files = [] if section.kubeconfig is None else [("kubeconfig", section.kubeconfig)]
    if (folder := section.certificates) is not None:
        files += [("certificates", folder / name) for name in CERTIFICATE_FILES]
    for name, path in files:
        try:
            path.read_bytes()
        except OSError as error:
            yield ["kubernetes", name], f"{path} cannot be read: {error.strerror}"
