"""What the settings of edge-guard may be with the others (decisions 5.9)."""

from __future__ import annotations

from collections.abc import Iterator

from pyservice.settings.model import Settings


def edge_conflicts(settings: Settings) -> Iterator[tuple[list[str], str]]:
    """Location and message. No answer ever names an address on which nobody listens."""
    edge = settings.edge
    ports = tuple(None if one is None else one.port for one in (edge.http, edge.https))
    if settings.domains.job is not None and not edge.is_fronted and ports != (80, 443):
        yield (
            ["domains", "job"],
            "needs edge-guard at ports 80 and 443: set edge.http and edge.https to them, or edge.is_fronted when "
            "another proxy has them and leads to edge-guard",
        )
    if edge.https is not None and not edge.certificates:
        yield ["edge", "https"], "needs edge.certificates"
    for number, certificate in enumerate(edge.certificates):
        for name in ("cert", "key"):
            path = getattr(certificate, name)
            try:
                path.read_bytes()
            except OSError as error:
                yield (
                    ["edge", "certificates", str(number), name],
                    f"{path} cannot be read: {error.strerror}",
                )
