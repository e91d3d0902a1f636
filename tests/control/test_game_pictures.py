"""Upload and display of avatars, banners and logos of a game."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.full_service import Developer, eventually
from tests.support.upload_files import jpeg, png, put
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


async def prepared(developer: Developer, slug: str, path: str, content: bytes, **more: Any) -> Any:
    fields = {"path": path, "content_length": len(content), **more}
    response = await developer.good(slug, **fields)
    assert response["presigned_request"]["path"] == path
    assert response["presigned_request"]["byte_offset"] == 0
    assert (await put(response["presigned_request"], content)).status_code == 200
    return response["upload_id"]


async def avatars(developer: Developer, game_id: str) -> Any:
    return (await developer.good("list_avatars", game_id=game_id))["custom_avatars"]


async def test_avatar_upload_from_preparation_to_display(developer: Developer) -> None:
    game_id = await developer.game()
    of_game = {"game_id": game_id}
    first = await prepared(developer, "prepare_avatar", "knight.png", png(), **of_game)
    (avatar,) = await avatars(developer, game_id)
    assert avatar == {
        "upload_id": first,
        "display_name": "knight.png",
        "create_ts": avatar["create_ts"],
        "content_length": len(png()),
        "complete": False,
    }
    await developer.good("complete_avatar", **of_game, upload_id=first)
    of_second = {"mime": "image/jpeg", **of_game}
    second = await prepared(developer, "prepare_avatar", "KING.JPG", jpeg(), **of_second)
    await developer.good("complete_upload", upload_id=second)
    listed = await avatars(developer, game_id)
    assert {one["upload_id"] for one in listed} == {first, second}
    assert all(one["complete"] for one in listed)
    for one in listed:
        is_first = one["upload_id"] == first
        picture = await _shown(one["url"])
        assert picture.headers["content-type"] == ("image/png" if is_first else "image/jpeg")
        assert picture.content == (png() if is_first else jpeg())
        assert picture.headers["x-content-type-options"] == "nosniff"
        assert "immutable" in picture.headers["cache-control"]
    repeat_code = await developer.code("complete_avatar", **of_game, upload_id=first)
    assert repeat_code == "UPLOAD_ALREADY_COMPLETE"


NO_PICTURES = (
    *(("a.png", jpeg()), ("a.jpeg", png()), ("a.png", b"<svg/>"), ("a.png", png()[:-1])),
    ("a.png", png()[:33] + b"<script>IDAT</script>" + png()[-12:]),
)


async def test_picture_type_is_detected_from_content(developer: Developer) -> None:
    target = {"game_id": await developer.game()}
    for path, content in NO_PICTURES:
        upload_id = await prepared(developer, "prepare_avatar", path, content, **target)
        refusal = await developer.call("complete_avatar", **target, upload_id=upload_id)
        assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", (("path", "invalid"),))
        repeat_code = await developer.code("complete_avatar", **target, upload_id=upload_id)
        assert repeat_code == "UPLOAD_INCOMPLETE"
    stored = await avatars(developer, target["game_id"])
    assert [one["complete"] for one in stored] == [False] * len(NO_PICTURES)


IMPOSSIBLE: tuple[tuple[dict[str, Any], str, list[str]], ...] = (
    ({"path": "a.gif"}, "VALIDATION_FAILED", ["path.invalid"]),
    ({"path": "../a.png"}, "VALIDATION_FAILED", ["path.invalid"]),
    ({"path": ""}, "VALIDATION_FAILED", ["path.too-short"]),
    ({"path": "a.png", "mime": "image/jpeg"}, "VALIDATION_FAILED", ["mime.not-allowed"]),
    ({"path": "a.png", "mime": "text/html"}, "VALIDATION_FAILED", ["mime.not-allowed"]),
    ({"path": "a.png", "content_length": (2 << 20) + 1}, "UPLOAD_TOO_LARGE", []),
    ({"path": "a.png", "content_length": 0}, "BODY_INVALID", ["content_length.too-low"]),
)


@pytest.mark.parametrize("slug", ["prepare_avatar", "prepare_banner", "prepare_logo"])
async def test_impossible_picture_is_refused_at_preparation(
    developer: Developer, slug: str
) -> None:
    game_id = await developer.game()
    for fields, code, paths in IMPOSSIBLE:
        request: dict[str, Any] = {"game_id": game_id, "content_length": 100, **fields}
        refusal = await developer.call(slug, **request)
        assert (refusal.code, [".".join(path) for path in refusal.errors]) == (code, paths), fields
    await developer.good(slug, game_id=game_id, path="a.png", content_length=2 << 20)


@pytest.mark.parametrize("which", ["banner", "logo"])
async def test_game_picture_is_shown_and_wakes_watches(developer: Developer, which: str) -> None:
    game_id = await developer.game()
    before = await developer.good("get_game", game_id=game_id)
    assert f"{which}_url" not in before["game"]
    all_before = await developer.good("get_games")
    upload_id = await prepared(developer, f"prepare_{which}", "x.png", png(), game_id=game_id)
    index = before["watch"]["index"]
    waiting_task = asyncio.create_task(
        developer.good("get_game", game_id=game_id, watch_index=index)
    )
    waiting_all = asyncio.create_task(
        developer.good("get_games", watch_index=all_before["watch"]["index"])
    )
    await developer.good(f"complete_{which}", game_id=game_id, upload_id=upload_id)
    url = (await asyncio.wait_for(waiting_task, PATIENCE_S))["game"][f"{which}_url"]
    await asyncio.wait_for(waiting_all, PATIENCE_S)

    async def in_games() -> Any:
        games = (await developer.good("get_games"))["games"]
        return next(one for one in games if one["game_id"] == game_id).get(f"{which}_url")

    assert await eventually(in_games) == url
    assert (await _shown(url)).content == png()
    other = await prepared(developer, f"prepare_{which}", "y.jpg", jpeg(), game_id=game_id)
    assert (await developer.good("get_game", game_id=game_id))["game"][f"{which}_url"] == url
    await developer.good(f"complete_{which}", game_id=game_id, upload_id=other)
    newer = (await developer.good("get_game", game_id=game_id))["game"][f"{which}_url"]
    assert newer != url
    assert (await _shown(newer)).headers["content-type"] == "image/jpeg"


async def test_upload_completes_only_as_its_kind(developer: Developer) -> None:
    game_id, other_id = await developer.game(), await developer.game()
    upload_id = await prepared(developer, "prepare_avatar", "a.png", png(), game_id=game_id)
    for kind, target in (("logo", game_id), ("banner", game_id), ("avatar", other_id)):
        code = await developer.code(f"complete_{kind}", game_id=target, upload_id=upload_id)
        assert code == "UPLOAD_NOT_FOUND"
    await developer.good("complete_avatar", game_id=game_id, upload_id=upload_id)
    assert "logo_url" not in (await developer.good("get_game", game_id=game_id))["game"]


async def test_altered_picture_url_is_refused(developer: Developer) -> None:
    game_id = await developer.game()
    upload_id = await prepared(developer, "prepare_avatar", "a.png", png(), game_id=game_id)
    await developer.good("complete_avatar", game_id=game_id, upload_id=upload_id)
    url = (await avatars(developer, game_id))[0]["url"]
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        other_type = url.replace("image%2Fpng", "text%2Fhtml")
        for altered in (other_type, url.partition("?")[0], url[:-2] + "AA"):
            assert altered != url
            answer = await client.get(altered)
            assert (answer.status_code, answer.json()["code"]) == (403, "UPLOAD_URL_INVALID")


async def _shown(url: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        answer = await client.get(url)
    assert answer.status_code == 200, answer.text
    return answer
