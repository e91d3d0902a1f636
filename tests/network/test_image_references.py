from __future__ import annotations

from typing import Final

import pytest

from pyservice.network.image_references import REFERENCE_MAX, has_digest, is_image_reference

DIGEST: Final = f"@sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    "name",
    [
        "game",
        "team/game",
        "registry.example.com/team/game",
        "registry.example.com:5000/team/games/game",
        "localhost/hosting-runner",
        "10.0.0.7:5000/game",
        "[fd00::7]:5000/game",
        "registry.example.com/team/game.server_1__2--3",
    ],
)
def test_reference_is_accepted_with_a_tag_and_a_digest(name: str) -> None:
    for reference in (name, f"{name}:1.0_A-b"):
        assert is_image_reference(reference)
        assert not has_digest(reference)
        assert is_image_reference(reference + DIGEST)
        assert has_digest(reference + DIGEST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        DIGEST,
        "https://registry.example.com/team/game" + DIGEST,
        "registry.example.com/Team/game" + DIGEST,
        "registry.example.com//game" + DIGEST,
        "registry.example.com/game/" + DIGEST,
        "registry.example.com/game:" + DIGEST,
        "registry.example.com/game:.1" + DIGEST,
        "registry.example.com/ga me" + DIGEST,
        "registry.example.com/game" + DIGEST[:-1],
        "registry.example.com/game" + DIGEST + "0",
        "registry.example.com/game" + DIGEST.upper(),
        "registry.example.com/game@md5:" + "0" * 32,
        "registry.example.com/game" + DIGEST + DIGEST,
        "registry.example.com/game" + DIGEST + "\n",
        "-registry.example.com/game" + DIGEST,
        "registry..example.com/a_/game" + DIGEST,
        "registry.example.com/game;reboot" + DIGEST,
        "a" * (REFERENCE_MAX - len(DIGEST) + 1) + DIGEST,
    ],
)
def test_other_text_is_no_reference(text: str) -> None:
    assert not is_image_reference(text)
    assert not has_digest(text) or len(text) > REFERENCE_MAX


def test_long_text_is_judged_fast() -> None:
    assert not is_image_reference("a-" * (REFERENCE_MAX // 2))
    assert not is_image_reference("a." * (REFERENCE_MAX // 2 - 1) + "!")
