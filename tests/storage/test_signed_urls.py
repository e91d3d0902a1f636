from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from pyservice.storage.signed_urls import InvalidSignature, RetiredKey, UrlGrant, UrlSigner

KEY, OTHER = b"k" * 32, b"o" * 32
NOW_S = 1_700_000_000
PUT = UrlGrant("PUT", "up/a", NOW_S + 60, length=10, offset=5)
GET = UrlGrant("GET", "up/a", NOW_S + 60, filename="a b/ü&=.csv", content_type="text/csv")


def verified(target: str, method: str = "PUT", now_s: float = NOW_S, key: bytes = KEY) -> UrlGrant:
    url = urlsplit(target)
    return UrlSigner(key).verify(method, url.path, url.query.encode(), now_s)


@pytest.mark.parametrize("grant", [PUT, GET, UrlGrant("GET", "a/b", None)])
def test_signed_grant_round_trips(grant: UrlGrant) -> None:
    target = UrlSigner(KEY).target(grant)
    assert verified(target, grant.method) == grant
    assert target.isascii()


def test_get_url_also_allows_head() -> None:
    assert verified(UrlSigner(KEY).target(GET), "HEAD") == GET


def test_url_expires_at_its_second() -> None:
    target = UrlSigner(KEY).target(PUT)
    verified(target, now_s=NOW_S + 59.9)
    with pytest.raises(InvalidSignature):
        verified(target, now_s=NOW_S + 60)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("up/a", "up/b"),
        ("up/a", "up//a"),
        ("up/a", "up/%61"),
        ("length=10", "length=11"),
        ("length=10", "length=010"),
        ("length=10", "length=%31%30%30"),
        ("length=10", "length=10&length=11"),
        ("length=10", "length=10&type=text"),
        ("length=10&", ""),
        ("offset=5", "offset=6"),
        ("expires=17", "expires=27"),
        ("signature=", "signature=A"),
        ("signature=", "signature=%ff"),
        ("signature=", "sign="),
        ("&signature", "&&signature"),
    ],
)
def test_altered_url_is_rejected(before: str, after: str) -> None:
    target = UrlSigner(KEY).target(PUT)
    assert before in target
    with pytest.raises(InvalidSignature):
        verified(target.replace(before, after))


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "put", ""])
def test_another_method_is_rejected(method: str) -> None:
    with pytest.raises(InvalidSignature):
        verified(UrlSigner(KEY).target(PUT), method)
    if method not in ("GET", "HEAD"):
        with pytest.raises(InvalidSignature):
            verified(UrlSigner(KEY).target(GET), method)


def test_every_character_is_signed() -> None:
    target = UrlSigner(KEY).target(PUT)
    for at in range(len(target)):
        altered = target[:at] + ("x" if target[at] != "x" else "y") + target[at + 1 :]
        # The last character of unpadded base64 has two unused bits.
        with pytest.raises(InvalidSignature):
            verified(altered)


def test_fields_cannot_be_exchanged() -> None:
    name = UrlGrant("GET", "up/a", None, filename="x", content_type=None)
    kind = UrlGrant("GET", "up/a", None, filename=None, content_type="x")
    signature = UrlSigner(KEY).target(name).partition("signature=")[2]
    other = UrlSigner(KEY).target(kind).partition("signature=")[0] + "signature=" + signature
    with pytest.raises(InvalidSignature):
        verified(other, "GET")


def test_old_urls_are_valid_while_their_key_exists() -> None:
    old = urlsplit(UrlSigner(KEY).target(PUT))
    rotated = UrlSigner(KEY)
    rotated.take(OTHER, [RetiredKey(KEY, NOW_S + 60)])
    assert rotated.verify("PUT", old.path, old.query.encode(), NOW_S) == PUT
    assert verified(rotated.target(PUT), key=OTHER) == PUT
    with pytest.raises(InvalidSignature):
        verified(rotated.target(PUT), key=KEY)
    rotated.take(OTHER, [])
    with pytest.raises(InvalidSignature):
        rotated.verify("PUT", old.path, old.query.encode(), NOW_S)


def test_old_key_signs_nothing_that_outlives_its_urls() -> None:
    rotated = UrlSigner(OTHER, [RetiredKey(KEY, NOW_S + 60)], lambda key: key == "up/picture")

    def is_good(grant: UrlGrant) -> bool:
        url = urlsplit(UrlSigner(KEY).target(grant))
        try:
            return rotated.verify(grant.method, url.path, url.query.encode(), NOW_S) == grant
        except InvalidSignature:
            return False

    assert is_good(PUT)
    assert not is_good(PUT._replace(expires_at_s=NOW_S + 61))
    assert is_good(UrlGrant("GET", "up/picture", None))
    assert not is_good(UrlGrant("GET", "up/build", None))


def test_weak_key_is_rejected() -> None:
    for weak in (b"", b"short"):
        with pytest.raises(ValueError, match="32 bytes"):
            UrlSigner(weak)
        with pytest.raises(ValueError, match="32 bytes"):
            UrlSigner(KEY, [RetiredKey(weak, NOW_S)])
