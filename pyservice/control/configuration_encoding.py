"""Encodings of a version's configuration: stored bytes, JSON for responses, and the message for the data plane."""

from __future__ import annotations

from typing import Any, Final

import orjson

from pyservice.pb.hosting.internal.v1 import configuration_pb2 as fed
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.schema.json_encoding import PrerenderedJson, compile_encoder
from pyservice.schema.methods import descriptor_of

_write: Final = compile_encoder(descriptor_of(pb.CloudConfig))


def encode(config: pb.CloudConfig) -> bytes:
    return config.SerializeToString(deterministic=True)


def decode(stored_config: bytes) -> pb.CloudConfig:
    return pb.CloudConfig.FromString(stored_config)


def json_of(config: pb.CloudConfig) -> bytes:
    return orjson.dumps(_write(config))


def version_answer(
    stored_config: bytes, config_json: bytes, create_ts: str, display_name: str, version_id: str
) -> PrerenderedJson:
    """Returns the `getVersion` response with the stored JSON text of the configuration."""

    def decode_response() -> pb.GetVersionResponse:
        version = pb.GameVersion(
            config=decode(stored_config),
            create_ts=create_ts,
            display_name=display_name,
            version_id=version_id,
        )
        return pb.GetVersionResponse(version=version)

    # Encoding a configuration of 4 KB again takes 100 times as long.
    fields = orjson.dumps(
        {"create_ts": create_ts, "display_name": display_name, "version_id": version_id}
    )
    return PrerenderedJson(
        b'{"version":{"config":' + config_json + b"," + fields[1:] + b"}", decode_response
    )


_LEVEL: Final = ("max_players", "max_players_direct", "max_players_party", "tier")
_MODE: Final = (
    *_LEVEL,
    "allow_dynamic_max_players",
    "listable",
    "taggable",
    "player_token_ttl",
    "heartbeat_timeout",
    "heartbeat_grace_ms",
    "max_drain_ms",
)
_ACTION: Final = ("enabled", "enable_private", "enable_public")
_CAPTCHA: Final = ("requests_before_reverify", "verification_ttl")
_DOCKER: Final = ("image_id", "network_mode")
_PORT: Final = ("port", "protocol", "proxy", "dev_port", "dev_protocol", "proxy_protocol")
_RANGES: Final = ("port_range", "dev_port_range")
_ENDS: Final = ("min", "max")
_ADAPTER: Final = tuple(field.name for field in pb.VersionAdapter.DESCRIPTOR.fields)


def to_feed(config: pb.CloudConfig) -> fed.MatchmakerConfig:
    """Returns the configuration for the feed, without fields that only the command-line tool uses."""
    source = config.matchmaker
    target = fed.MatchmakerConfig()
    _copy(source, target, (*_LEVEL, "dev_hostname"))
    _copy_captcha(source.captcha, target)
    _copy_level(source, target)
    for name, mode in source.game_modes.entries.items():
        _copy_mode(mode, target.game_modes[name])
    return target


def _copy(source: Any, target: Any, fields: tuple[str, ...]) -> None:
    for field in fields:
        if source.HasField(field):
            setattr(target, field, getattr(source, field))


def _copy_captcha(source: pb.VersionCaptcha, target: fed.MatchmakerConfig) -> None:
    for name in ("captcha_a", "captcha_b"):
        if source.HasField(name):
            keys = getattr(source, name)
            getattr(target.captcha, name).CopyFrom(
                fed.CaptchaProvider(secret_key=keys.secret_key, site_key=keys.site_key)
            )
    if target.HasField("captcha"):
        _copy(source, target.captcha, _CAPTCHA)


def _copy_mode(source: pb.VersionGameMode, target: fed.GameMode) -> None:
    _copy(source, target, _MODE)
    _copy_level(source, target)
    if source.HasField("adapter"):
        target.adapter.SetInParent()
        _copy(source.adapter, target.adapter, _ADAPTER)
    if source.HasField("actions"):
        target.actions.SetInParent()
    for name in ("create", "find", "join"):
        if not source.actions.HasField(name):
            continue
        action, target_action = getattr(source.actions, name), getattr(target.actions, name)
        target_action.SetInParent()
        _copy(action, target_action, _ACTION if name == "create" else _ACTION[:1])
        if action.HasField("verification"):
            target_action.verification.url = action.verification.url
            target_action.verification.headers.update(action.verification.headers.entries)


def _copy_level(
    source: pb.VersionMatchmaker | pb.VersionGameMode, target: fed.MatchmakerConfig | fed.GameMode
) -> None:
    _copy_idle_lobbies(source, target)
    for name, region in source.regions.entries.items():
        target_region = target.regions[name]
        _copy(region, target_region, ("tier",))
        _copy_idle_lobbies(region, target_region)
    if source.HasField("docker"):
        _copy_docker(source.docker, target.docker)


def _copy_idle_lobbies(source: Any, target: Any) -> None:
    if source.HasField("idle_lobbies"):
        _copy(source.idle_lobbies, target.idle_lobbies, _ENDS)


def _copy_docker(source: pb.VersionDocker, target: fed.DockerConfig) -> None:
    target.SetInParent()
    _copy(source, target, _DOCKER)
    target.args.extend(source.args.entries)
    target.env.update(source.env.entries)
    for name, port in source.ports.entries.items():
        target_port = target.ports[name]
        _copy(port, target_port, _PORT)
        for field in _RANGES:
            if port.HasField(field):
                _copy(getattr(port, field), getattr(target_port, field), _ENDS)
