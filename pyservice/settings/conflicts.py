"""Conflicts between settings that are each valid alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Set
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pyservice.network.port_ranges import PUBLIC_PORTS
from pyservice.settings.model import Settings
from pyservice.settings.sections import InheritedSocket, ListenAddress


def edge_conflicts(settings: Settings) -> Iterator[tuple[list[str], str]]:
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
    return isinstance(where, InheritedSocket) or (where is not None and where.port == port)


ANY_HOST: Final = frozenset({"0.0.0.0", "::"})
SEPARATE_HOST_HINT: Final = (
    "a host of its own outside of that domain, as files.example.com is beside cdn.example.com"
)

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class _Place(NamedTuple):
    """A served URL and its setting. `is_given` is False for a default."""

    location: tuple[str, ...]
    url: SplitResult
    is_given: bool = True

    @property
    def host(self) -> str:
        return (self.url.hostname or "").removesuffix(".")

    @property
    def origin(self) -> tuple[str, str, int]:
        port = self.url.port
        return self.url.scheme, self.host, _DEFAULT_PORTS[self.url.scheme] if port is None else port

    def is_below(self, domain: str | None) -> bool:
        return domain is not None and f".{self.host}".endswith(f".{domain}")


def origin_conflicts(settings: Settings, wrong: Set[str]) -> Iterator[tuple[list[str], str]]:
    """Yields each conflict in which uploads share an origin with the API, with pages, or with
    another developer's site.

    Uploads are untrusted code in a browser. `wrong` are the invalid sections, which have defaults
    now.
    """
    domain = settings.domains.cdn
    services, stores = list(_services(settings, wrong)), list(_stores(settings, wrong))
    for service in services:
        if service.is_below(domain):
            yield (
                list(service.location),
                f"{service.url.hostname} is at or below domains.cdn ({domain}), where hosts are sites of games: "
                "give it a host outside of that domain, or the sites another domain",
            )
    for store in stores:
        if store.is_below(domain):
            yield (
                list(store.location),
                f"{store.url.hostname} is at or below domains.cdn ({domain}), and a game of that name would share its "
                f"origin with uploads and pictures: give it {SEPARATE_HOST_HINT}",
            )
        what = "the CDN" if store.location == ("cdn_url",) else "the bucket"
        for service in services:
            # `port_conflicts` and the listener check report overlapping listeners.
            if store.origin == service.origin and (store.is_given or service.is_given):
                yield (
                    list(store.location),
                    f"{store.url.geturl()} is of the same origin as {'.'.join(service.location)} "
                    f"({service.url.geturl()}), where a site could do what its visitors may: "
                    f"give {what} another host or port",
                )


def _services(settings: Settings, wrong: Set[str]) -> Iterator[_Place]:
    if settings.public_url is not None:
        yield from _place(("public_url",), settings.public_url)
    elif wrong.isdisjoint(("http", "public_url")):
        yield from _listening(("public_url",), settings.http)
    yield from _place(("hub_url",), settings.hub_url)
    if settings.domains.main is not None:
        yield from _place(("domains", "main"), f"https://{settings.domains.main}")


def _stores(settings: Settings, wrong: Set[str]) -> Iterator[_Place]:
    if settings.cdn_url is not None:
        yield from _place(("cdn_url",), settings.cdn_url)
    elif settings.feed_file is None and wrong.isdisjoint(("cdn", "cdn_url", "feed_file")):
        yield from _listening(("cdn_url",), settings.cdn)
    if settings.s3 is not None:
        name = "endpoint" if settings.s3.public_endpoint is None else "public_endpoint"
        yield from _place(("s3", name), getattr(settings.s3, name))


def _place(location: tuple[str, ...], url: str | None) -> Iterator[_Place]:
    try:
        parts = urlsplit(url or "")
        _ = parts.port
    except ValueError:
        return
    if parts.hostname:
        yield _Place(location, parts)


def _listening(location: tuple[str, ...], address: ListenAddress) -> Iterator[_Place]:
    host = "127.0.0.1" if address.host in ANY_HOST else address.host
    for place in _place(location, f"http://{ListenAddress(host, address.port)}"):
        yield place._replace(is_given=False)


def port_conflicts(settings: Settings) -> Iterator[tuple[list[str], str]]:
    runtime = settings.runtime
    kinds = (
        ("the public ports of lobbies and servers", PUBLIC_PORTS),
        ("runtime.process_ports", runtime.process_ports.numbers),
        ("runtime.host_ports", runtime.host_ports.numbers),
    )
    for (other, taken), (name, wanted) in itertools.combinations(kinds, 2):
        first, last = max(taken.start, wanted.start), min(taken.stop, wanted.stop) - 1
        if first <= last:
            yield name.split("."), f"has {first}-{last} in common with {other}"
