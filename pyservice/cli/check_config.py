"""What `pyservice check-config` finds beyond the settings themselves: problems of the feed file."""

from __future__ import annotations

from pyservice.dataplane import static_feed
from pyservice.dataplane.feed_rules import OperatorLimits, problems_of
from pyservice.dataplane.namespaces import Namespaces
from pyservice.settings import Settings


def feed_problems(settings: Settings) -> list[str]:
    """A line for each thing in the feed file that the service would refuse."""
    path = settings.feed_file
    if path is None:
        return []
    try:
        content = static_feed.read(path)
    except static_feed.StaticFeedError as error:
        return [f"{path}: {problem}" for problem in error.problems]
    limits = OperatorLimits(
        settings.player_limit_max, {region.name_id for region in settings.regions}
    )
    found = []
    namespaces = Namespaces()
    for configuration in content.configurations:
        problems = problems_of(configuration, limits, namespaces)
        name = f"{configuration.game.name_id}/{configuration.name_id}"
        found += [
            f"{path}: {name}: {'.'.join(problem.path)}: {problem.reason}" for problem in problems
        ]
        if not problems:
            namespaces.put(configuration)
    return found
