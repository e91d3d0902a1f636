"""What the settings of edge-guard may be with the others (decisions 5.9)."""

from __future__ import annotations

from collections.abc import Iterator

from pyservice.settings.model import Settings
from pyservice.settings.sections import InheritedSocket, ListenAddress


def edge_conflicts(settings: Settings) -> Iterator[tuple[list[str], str]]:
    """Location and message. No answer ever names an address on which nobody listens."""
    edge = settings.edge
    has_both = _may_be_at(edge.http, 80) and _may_be_at(edge.https, 443)
    if settings.domains.job is not None and not edge.is_fronted and not has_both:
        yield (
            ["domains", "job"],
            "needs edge-guard at ports 80 and 443: set edge.http and edge.https to them or to sockets that are handed "
            "over (fd:3), or edge.is_fronted when another proxy has them and leads to edge-guard",
        )
    if isinstance(edge.https, InheritedSocket) and edge.https == edge.http:
        yield ["edge", "https"], f"{edge.https} is edge.http: hand over another socket"
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


def _may_be_at(where: ListenAddress | InheritedSocket | None, port: int) -> bool:
    """A socket that is handed over is there with its address; whoever made it knows."""
    return isinstance(where, InheritedSocket) or (where is not None and where.port == port)
