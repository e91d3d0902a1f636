"""Addresses in answers: of sites, profile pages and pictures. From settings, and from where the public door listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Links:
    """`cdn_domain` None: local mode, where everything of the CDN is below `cdn_url`. `public_url` is the base of the
    API; `given_hub_url` None: the same.
    """

    cdn_url: str
    cdn_domain: str | None
    public_url: str
    given_hub_url: str | None
    picture: Callable[[str], str]
    """Name of an uploaded picture to its address; see `shown`."""

    @property
    def hub_url(self) -> str:
        """Where people look at groups."""
        return self.given_hub_url or self.public_url

    def game(self, name_id: str) -> str:
        """Where the site of its `prod` is (decisions 8.4)."""
        if self.cdn_domain is None:
            return f"{self.cdn_url}/{name_id}/prod/"
        return f"https://{name_id}.{self.cdn_domain}"

    def cdn_hosts(self, game_name_id: str, name_id: str) -> list[str]:
        """Hosts under which a namespace's site is served (decisions 8.9); none in local mode."""
        if self.cdn_domain is None:
            return []
        hosts = [f"{game_name_id}--{name_id}.{self.cdn_domain}"]
        return [*hosts, f"{game_name_id}.{self.cdn_domain}"] if name_id == "prod" else hosts

    def shown(self, upload_id: str | None, kind: str | None) -> str | None:
        """Address of the picture that was uploaded with it, png or jpeg; None without one."""
        return None if upload_id is None else self.picture(f"{upload_id}.{kind}")

    def profile(self, group_id: str) -> str:
        """Profile page of a group."""
        return f"{self.hub_url}/groups/{group_id}"
