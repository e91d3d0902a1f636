"""What is kept of versions that a namespace no longer runs and lobbies still may: their rules for join, and how
long they may go on (decisions 5.8).

Pure. A lobby has all else from its making; which versions have one, the engine says. When it is done is `feed`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from pyservice.dataplane.configuration import raw_id
from pyservice.dataplane.feed_gates import Found
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb

RETAINED_MAX: Final = 1_000
RETAINED_BYTES_MAX: Final = 1024 * 1024
"""Of one namespace, in sum: a token that is revoked has to get to the disk with all of it."""

LiveVersions = Callable[[bytes], Collection[bytes]]
"""Versions of the lobbies of a namespace that have not ended."""


class Retention(NamedTuple):
    """What a namespace keeps when it takes a configuration."""

    versions: tuple[pb.Version, ...] = ()
    is_any_dropped: bool = False
    """A version that was kept has no lobby any more. The end of its last one may not be durable yet."""


def retain(
    configuration: pb.NamespaceConfiguration,
    held: pb.NamespaceConfiguration | None,
    live_versions: LiveVersions,
    now_ms: int,
) -> Retention:
    """Of the versions that are held and not in what comes: those with a lobby, and the one that runs now, of which
    lobbies are made until the other is in its place. One that is retired now is since `now_ms`.
    """
    if held is None:
        return Retention()
    known = {one.version_id: one for one in (*held.retained_versions, *held.versions)}
    for version in configuration.versions:
        known.pop(version.version_id, None)
    needed = {held.current_version_id} & known.keys()
    if needed != known.keys():
        live = live_versions(raw_id(held.namespace_id))
        needed |= {version_id for version_id in known if raw_id(version_id) in live}
    versions = tuple(_retired(known[version_id], now_ms) for version_id in sorted(needed))
    return Retention(versions, len(needed) < len(known))


def _retired(version: pb.Version, now_ms: int) -> pb.Version:
    kept = rules_for_old(version)
    kept.retired_ts_ms = version.retired_ts_ms or now_ms
    return kept


def rules_for_old(version: pb.Version) -> pb.Version:
    """A version without all that only new lobbies need. Modes that ask nothing stay: they ask nothing."""
    kept = pb.Version(version_id=version.version_id, display_name=version.display_name)
    matchmaker = version.matchmaker
    if matchmaker.HasField("captcha"):
        kept.matchmaker.captcha.CopyFrom(matchmaker.captcha)
    for name, mode in matchmaker.game_modes.items():
        reduced = kept.matchmaker.game_modes[name]
        if mode.actions.join.HasField("verification"):
            reduced.actions.join.CopyFrom(mode.actions.join)
        if mode.HasField("max_drain_ms"):
            reduced.max_drain_ms = mode.max_drain_ms
    return kept


def problems_of_retention(
    retention: Retention, held: pb.NamespaceConfiguration | None
) -> Iterator[Found]:
    """What stands against a change that keeps more than before; one that keeps no more always goes."""
    before = {one.version_id for one in held.retained_versions} if held else set()
    if {one.version_id for one in retention.versions} <= before:
        return
    path = ("current_version_id",)
    if len(retention.versions) > RETAINED_MAX:
        yield (
            path,
            f"cannot be switched to while lobbies of {len(retention.versions):,} other versions run, at most "
            f"{RETAINED_MAX:,}: end lobbies of older versions first",
        )
    size = sum(one.ByteSize() for one in retention.versions)
    if size > RETAINED_BYTES_MAX:
        yield (
            path,
            f"cannot be switched to while lobbies of {len(retention.versions):,} other versions run: captcha and "
            f"verification of these take {size:,} bytes, at most {RETAINED_BYTES_MAX:,} are kept; end lobbies of "
            "older versions first",
        )
