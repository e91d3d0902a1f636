from __future__ import annotations

import stat
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyservice.runtime.archive_rules import BadArchive
from pyservice.runtime.build_manifests import BadManifest
from pyservice.runtime.root_filesystem import container_root_uid
from pyservice.settings.user_ids import DEFAULT_CONTAINER_USER_IDS
from tests.runtime.unpacked_trees import tree, unpacked
from tests.support.container_images import file, folder, layer, link, saved
from tests.support.upload_files import packed

HARD = tarfile.LNKTYPE


def test_later_layers_override_earlier_ones(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        saved(
            layer(folder("a"), file("a/kept", b"1"), file("a/changed", b"1"), file("b", b"1")),
            layer(folder("b"), file("b/now", b"2"), file("a/changed", b"2"), file("c", b"2")),
            layer(link("c", "a"), file("new/deep/file", b"3")),
        ),
    )
    assert tree(root) == {
        "a": "/",
        "a/kept": "1",
        "a/changed": "2",
        "b": "/",
        "b/now": "2",
        "c": "-> a",
        "new": "/",
        "new/deep": "/",
        "new/deep/file": "3",
    }
    assert not (tmp_path / "parts").exists(), "the upload is not needed any more"


def test_whiteouts_remove_only_entries_of_lower_layers(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        saved(
            layer(
                *(file("gone", b"1"), file("tree/x/y", b"1"), file("opaque/old", b"1")),
                *(file("opaque/sub/old", b"1"), file("half/a", b"1"), file("half/b", b"1")),
                link("link", "half"),
            ),
            layer(
                *(file(".wh.gone"), file(".wh.tree"), file("opaque/new", b"2")),
                *(file("opaque/sub/new", b"2"), file("opaque/.wh..wh..opq")),
                *(file("half/.wh.a"), file(".wh.link"), file(".wh.never"), file(".wh..wh.plnk")),
                *(file("again", b"2"), file(".wh.again")),
            ),
        ),
    )
    assert tree(root) == {
        "opaque": "/",
        "opaque/new": "2",
        "opaque/sub": "/",
        "opaque/sub/new": "2",
        "half": "/",
        "half/b": "1",
        "again": "2",
    }


def test_hard_links_may_target_lower_layers(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        saved(
            layer(file("one", b"1"), link("soft", "one")),
            layer(link("two", "one", HARD), link("three", "/soft", HARD)),
            layer(file("one", b"3")),
        ),
    )
    assert tree(root) == {"one": "3", "two": "1", "soft": "-> one", "three": "-> one"}


def test_folder_links_resolve_inside_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = unpacked(
        tmp_path / "build",
        saved(
            layer(
                folder("usr/lib"),
                link("lib", "usr/lib"),
                link("absolute", "/usr"),
                link("out", str(outside)),
                link("above", "../../../../../usr"),
            ),
            layer(
                *(file("lib/a", b"2"), file("absolute/b", b"2"), file("out/c", b"2")),
                *(file("above/d", b"2"), file("/usr/e", b"2")),
            ),
        ),
    )
    assert list(outside.iterdir()) == []
    entries = tree(root)
    assert {"usr/lib/a", "usr/b", "usr/d", "usr/e", f"{str(outside)[1:]}/c"} <= set(entries)
    assert entries["lib"] == "-> usr/lib"


def test_modes_and_owners_are_kept_without_set_id_bits(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        saved(
            layer(
                *(folder("home", 0o700, uid=1000, gid=1001), folder("tmp", 0o1777)),
                *(
                    file("su", b"x", 0o6755),
                    file("run", b"x", 0o711, uid=7),
                    file("far", uid=1 << 20),
                ),
                *(file("null", type=tarfile.CHRTYPE), file("pipe", type=tarfile.FIFOTYPE)),
            )
        ),
    )
    stats = {path.name: path.lstat() for path in root.iterdir()}
    assert {name: stat.S_IMODE(one.st_mode) for name, one in stats.items() if name != "far"} == {
        "home": 0o700,
        "tmp": 0o1777,
        "su": 0o755,
        "run": 0o711,
    }
    root_uid = container_root_uid(DEFAULT_CONTAINER_USER_IDS.numbers)
    if root_uid is not None:
        owners = {
            name: (one.st_uid - root_uid, one.st_gid - root_uid) for name, one in stats.items()
        }
        root_of_image = dict.fromkeys(("tmp", "su", "far"), (0, 0))
        assert owners == {"home": (1000, 1001), "run": (7, 0), **root_of_image}
        assert root.stat().st_uid == root_uid


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_layers_are_accepted(tmp_path: Path, compression: str) -> None:
    content = packed(layer(file("a", b"1")), compression)
    assert tree(unpacked(tmp_path, saved(content))) == {"a": "1"}


BAD_LAYERS = {
    "a folder above": layer(file("../x", b"x")),
    "a folder above, inside": layer(file("a/../../x", b"x")),
    "a hard link above": layer(link("a", "../../x", HARD)),
    "a hard link to nothing": layer(link("a", "nothing", HARD)),
    "a hard link to a folder": layer(folder("b"), link("a", "b", HARD)),
    "links in a circle": layer(link("a", "b"), link("b", "a"), file("a/x", b"x")),
    "folders without end": layer(file("a/" * 300 + "x", b"x")),
    "folders without end by a link": layer(
        folder("a/" * 200), link("b", "a/" * 200), file("b/" + "a/" * 200 + "x", b"x")
    ),
    "a whiteout of the root": layer(file(".wh.."), file(".wh.")),
    "no tar": b"no tar at all" * 100,
    "no whole tar": layer(file("a", b"x" * 5000))[:3000],
    "no whole gzip": packed(layer(file("a", b"x")), "gzip")[:-9],
}


@pytest.mark.parametrize("name", BAD_LAYERS)
def test_hostile_layer_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadArchive):
        unpacked(tmp_path / "build", saved(layer(file("one", b"1")), BAD_LAYERS[name]))
    assert [path.name for path in tmp_path.iterdir()] == ["build"]


WORDS = st.sampled_from(["a", "b", "c", ".", "..", ".wh.a", ".wh..wh..opq"])
PATHS = st.tuples(st.sampled_from(["", "/"]), st.lists(WORDS, min_size=1, max_size=4)).map(
    lambda both: both[0] + "/".join(both[1])
)
KINDS = st.sampled_from([tarfile.SYMTYPE, HARD, tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.CHRTYPE])
LAYERS = st.lists(
    st.lists(st.tuples(PATHS, KINDS, PATHS), min_size=1, max_size=6), min_size=1, max_size=3
)


Layers = list[list[tuple[str, bytes, str]]]


def image_of(layers: Layers) -> bytes:
    return saved(
        *(
            layer(*(file(path, type=kind, linkname=target) for path, kind, target in entries))
            for entries in layers
        )
    )


ACCEPTED_MIN = 2
ACCEPTED: Layers = [
    [("a/b", tarfile.REGTYPE, ""), ("/c", tarfile.SYMTYPE, "../a")],
    [("c/a", HARD, "a/b"), ("a/.wh.b", tarfile.REGTYPE, "")],
]


def test_layers_never_touch_files_outside_of_the_root() -> None:
    accepted = []

    @example(ACCEPTED)
    @given(LAYERS)
    def check(layers: Layers) -> None:
        if is_unpacked_inside_its_root(layers):
            accepted.append(layers)

    check()
    # Without generated images, the assertions would hold only for refused images.
    assert ACCEPTED in accepted
    assert len(accepted) > ACCEPTED_MIN


def is_unpacked_inside_its_root(layers: Layers) -> bool:
    """Returns whether the image is accepted. Fails if a file outside of its root changed."""
    is_accepted = True
    with tempfile.TemporaryDirectory() as name:
        outer = Path(name) / "outer"
        host = outer / "a" / "b"
        host.mkdir(parents=True)
        witness = outer / "a" / "c"
        witness.write_text("untouched")
        try:
            unpacked(host / "c", image_of(layers))
        except (BadArchive, BadManifest):
            is_accepted = False
        assert witness.read_text() == "untouched"
        assert witness.stat().st_nlink == 1
        assert {
            str(path.relative_to(outer)) for path in outer.rglob("*") if "b/c" not in str(path)
        } == {*("a", "a/b", "a/c")}
        for path in (host / "c" / "root").rglob("*"):
            assert path.is_symlink() or path.is_dir() or path.is_file()
    return is_accepted
