"""How large `config.matchmaker` may be as the data plane is fed of it: it goes there whole with each change of a
namespace, and is judged beside the calls of players.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyservice.control.configuration.feed import to_feed
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.schema.problems import Finding

MATCHMAKER_BYTES_MAX: Final = 640 * 1024
"""What the data plane takes (`dataplane.feed_rules`)."""


def findings_in_size(config: pb.CloudConfig, path: tuple[str, ...]) -> Iterator[Finding]:
    """Of the matchmaker of a configuration, which stands at `path`."""
    # What is fed is never larger: it is the same without what only the command-line tool reads.
    if config.matchmaker.ByteSize() <= MATCHMAKER_BYTES_MAX:
        return
    size = to_feed(config).ByteSize()
    if size > MATCHMAKER_BYTES_MAX:
        sentence = (
            f"takes {size:,} bytes on its way to the matchmaker, at most {MATCHMAKER_BYTES_MAX:,}"
        )
        yield Finding(path, "too-long", f"{sentence}: shorten args, env, or headers")
