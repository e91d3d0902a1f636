"""What a namespace asks of players before they may find, join or create: captcha and verification,
resolved once when the namespace is taken (decisions 4, 7).

Asking is in `captcha` and `verification`, what may be fed is in `feed_gates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from pyservice.ids import parse_uuid
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb

Provider = Literal["captcha_a", "captcha_b"]
PROVIDERS: Final[tuple[Provider, ...]] = ("captcha_a", "captcha_b")
"""In the order in which they are asked for."""


@dataclass(frozen=True, slots=True)
class ProviderKeys:
    """Keys of a captcha provider."""

    site_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CaptchaRule:
    """When a client has to prove that it is human. What is left out asks for each request."""

    providers: tuple[tuple[Provider, ProviderKeys], ...]
    ttl_ms: int
    requests: int


@dataclass(frozen=True, slots=True)
class VerificationRule:
    """Whom to ask whether a user may. Headers are sorted."""

    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Gate:
    """What stands before one way into one mode."""

    captcha: CaptchaRule | None
    verification: VerificationRule | None


@dataclass(frozen=True, slots=True)
class Gates:
    """All that a namespace asks. `find` and `create` are of the modes of the current version, joins
    of every version: a lobby keeps its version's rules for join (decisions 5.8).
    """

    captcha: CaptchaRule | None
    find: Mapping[str, VerificationRule]
    create: Mapping[str, VerificationRule]
    joins: Mapping[tuple[bytes, str], Gate]
    current_version: bytes

    def join(self, version: bytes, mode: str) -> Gate:
        """Of a lobby. One whose version nobody knows has the current version's."""
        gate = self.joins.get((version, mode)) or self.joins.get((self.current_version, mode))
        return gate or Gate(self.captcha, None)


def gates_of(configuration: pb.NamespaceConfiguration) -> Gates | None:
    """None when nothing is asked in any version, which most namespaces are."""
    joins: dict[tuple[bytes, str], Gate] = {}
    captcha: CaptchaRule | None = None
    find: dict[str, VerificationRule] = {}
    create: dict[str, VerificationRule] = {}
    is_any = False
    for version in (*configuration.retained_versions, *configuration.versions):
        rule = _captcha_rule(version.matchmaker.captcha)
        is_current = version.version_id == configuration.current_version_id
        if is_current:
            captcha = rule
        version_id = parse_uuid(version.version_id) or b""
        for name, mode in version.matchmaker.game_modes.items():
            actions = mode.actions
            joins[version_id, name] = Gate(rule, _verification_rule(actions.join))
            if is_current:
                _put(find, name, _verification_rule(actions.find))
                _put(create, name, _verification_rule(actions.create))
        is_any = is_any or rule is not None
    is_any = is_any or bool(find or create or any(gate.verification for gate in joins.values()))
    if not is_any:
        return None
    return Gates(
        captcha,
        MappingProxyType(find),
        MappingProxyType(create),
        MappingProxyType(joins),
        parse_uuid(configuration.current_version_id) or b"",
    )


def _put(rules: dict[str, VerificationRule], name: str, rule: VerificationRule | None) -> None:
    if rule is not None:
        rules[name] = rule


def _captcha_rule(captcha: pb.CaptchaConfig) -> CaptchaRule | None:
    providers = tuple(
        (name, ProviderKeys(getattr(captcha, name).site_key, getattr(captcha, name).secret_key))
        for name in PROVIDERS
        if captcha.HasField(name)
    )
    if not providers:
        return None
    return CaptchaRule(providers, captcha.verification_ttl, captcha.requests_before_reverify)


def _verification_rule(action: pb.Action | pb.CreateAction) -> VerificationRule | None:
    if not action.HasField("verification"):
        return None
    asked = action.verification
    return VerificationRule(asked.url, tuple(sorted(asked.headers.items())))
