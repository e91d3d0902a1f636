from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from pyservice.runtime.archive_rules import BadArchive
from pyservice.runtime.build_manifests import BadManifest
from pyservice.runtime.root_filesystem import find_program
from tests.runtime.unpacked_trees import program_json, tree, unpacked
from tests.support.container_images import bundle, file, folder, laid_out, layer, link, saved
from tests.support.upload_files import tar

HARD = tarfile.LNKTYPE


def test_image_configuration_gives_command_and_user(tmp_path: Path) -> None:
    passwd = b"root:x:0:0::/root:\ngame:x:1000:1001::/home/game:\n"
    groups = b"game:x:1001:\nplayers:x:1002:x,game\nothers:x:1003:gamer\n"
    base = layer(file("etc/passwd", passwd), file("etc/group", groups))
    config = {
        "Entrypoint": ["/run"],
        "Cmd": ["--fast"],
        "Env": ["A=b=c", "EMPTY="],
        "WorkingDir": "/srv/game",
    }
    as_whom = {
        "": (0, 0, [], "/root"),
        "game": (1000, 1001, [1002], "/home/game"),
        "1000": (1000, 1001, [1002], "/home/game"),
        "game:players": (1000, 1002, [], "/home/game"),
        "4711": (4711, 0, [], "/"),
        "4711:4712": (4711, 4712, [], "/"),
    }
    for number, (user, expected) in enumerate(as_whom.items()):
        host = tmp_path / str(number)
        root = unpacked(host, saved(base, config={**config, "User": user}))
        program = program_json(host)
        assert (program["uid"], program["gid"], program["groups"], program["home"]) == expected, (
            user
        )
        assert (program["command"], program["args"]) == (["/run"], ["--fast"])
        assert program["env"] == {"A": "b=c", "EMPTY": ""}
        assert (root / "srv/game").is_dir()
    for number, user in enumerate(("nobody-here", "game:no-group", "70000", "-1", "\u0661")):
        with pytest.raises(BadManifest):
            unpacked(tmp_path / f"bad{number}", saved(base, config={**config, "User": user}))


def test_user_file_is_not_read_outside_of_the_image(tmp_path: Path) -> None:
    """The image's user file is a link to a file outside of the image or to a missing file."""
    host = tmp_path / "build"
    base = layer(link("etc", "/../../../../etc"), link("passwd", "/etc/passwd"))
    with pytest.raises(BadManifest, match="no user 'root'"):
        unpacked(host, saved(base, config={"Cmd": ["x"], "User": "root"}))


def test_program_paths_resolve_inside_the_image(tmp_path: Path) -> None:
    root = unpacked(
        tmp_path,
        saved(
            layer(
                *(
                    file("usr/bin/game", b"x", 0o755),
                    link("bin", "usr/bin"),
                    file("bin/text", b"x"),
                ),
                *(link("usr/bin/sh", "/bin/game"), link("usr/bin/out", "/../../usr/bin/env")),
            )
        ),
    )
    paths = "/nowhere:/bin"
    assert find_program(root, "game", "/", paths) == "/bin/game"
    assert find_program(root, "/usr/bin/sh", "/", paths) == "/usr/bin/sh"
    assert find_program(root, "./game", "/usr/bin", paths) == "/usr/bin/./game"
    for name in ("text", "out", "/usr/bin/out", "nothing", "/usr/bin"):
        assert find_program(root, name, "/", paths) is None, name


def test_tag_selects_one_of_several_images(tmp_path: Path) -> None:
    one, two = layer(file("one", b"1")), layer(file("two", b"2"))
    config = json.dumps({"config": {"Cmd": ["/x"]}}).encode()
    manifest = [
        {"Config": "c.json", "RepoTags": ["game:1", "game:latest"], "Layers": ["1/layer.tar"]},
        {"Config": "c.json", "RepoTags": ["hub.example/game:2"], "Layers": ["2/layer.tar"]},
    ]
    content = tar(
        {
            "manifest.json": json.dumps(manifest).encode(),
            "c.json": config,
            "1/layer.tar": one,
            "2/layer.tar": two,
        }
    )
    for tag, name in (("game:1", "one"), ("latest", "one"), ("game:2", "two")):
        root = unpacked(tmp_path / tag, content, image_tag=tag)
        assert [path.name for path in root.iterdir()] == [name]
    with pytest.raises(BadManifest, match="several images"):
        unpacked(tmp_path / "none", content)
    with pytest.raises(BadManifest, match="no image 'game:3'"):
        unpacked(tmp_path / "another", content, image_tag="game:3")


def test_image_layout_selects_the_machine_platform(tmp_path: Path) -> None:
    other = {
        "digest": "sha256:" + "0" * 64,
        "platform": {"os": "unknown", "architecture": "unknown"},
    }
    content = laid_out(layer(file("a", b"1")), layer(file("b", b"2")), others=[other])
    assert tree(unpacked(tmp_path / "1", content)) == {"a": "1", "b": "2"}
    assert tree(unpacked(tmp_path / "2", content, image_tag="server:latest"))
    with pytest.raises(BadManifest):
        unpacked(tmp_path / "3", content, image_tag="another:latest")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar({"layer.tar": b"x"}), "neither manifest.json"),
        (tar({"manifest.json": b"{"}), "not valid JSON"),
        (tar({"manifest.json": b"[]"}), "list of images"),
        (tar({"manifest.json": b'[{"Config": "c", "Layers": []}]'}), "has no c"),
        (tar({"manifest.json": b'[{"Config": 1, "Layers": []}]'}), "Config and Layers"),
        (
            tar({"manifest.json": b'[{"Config": "c", "Layers": ["l"]}]', "c": b"{}"}),
            "lacks the layer",
        ),
        (tar({"manifest.json": b"[" + b" " * (2 << 20) + b"]"}), "longer than"),
        (tar({"index.json": b'{"manifests": []}'}), "no image for linux"),
        (tar({"index.json": b'{"manifests": [{"digest": "../x"}]}'}), "no digest"),
        (saved(layer(file("a")), architecture="z80"), "is for linux/z80"),
        (saved(layer(file("a")), config={"Env": ["A"]}), "NAME=value"),
        (saved(layer(file("a")), config={"Cmd": "sh"}), "lists of strings"),
        (saved(layer(file("a")), config={"WorkingDir": "x"}), "absolute path"),
    ],
)
def test_invalid_image_is_rejected_with_a_sentence(
    tmp_path: Path, content: bytes, words: str
) -> None:
    with pytest.raises(BadManifest, match=words):
        unpacked(tmp_path, content)


def test_bundle_gives_root_and_command(tmp_path: Path) -> None:
    content = bundle(
        *(folder("./rootfs/etc"), link("./rootfs/etc/link", "/bin/server")),
        *(
            link("./rootfs/twin", "rootfs/bin/server", HARD),
            file("./rootfs/dev/null", type=tarfile.CHRTYPE),
        ),
        *(file("./rootfs/.wh.kept", b"no whiteout"), file("./other/file", b"x")),
        args=["/bin/server", "--fast"],
        user={"uid": 7, "gid": 8},
        env=["A=b"],
        cwd="/etc",
    )
    root = unpacked(tmp_path, content, "oci_bundle")
    assert sorted(path.name for path in root.iterdir()) == [".wh.kept", "bin", "dev", "etc", "twin"]
    assert list((root / "dev").iterdir()) == []
    assert (root / "twin").samefile(root / "bin/server")
    program = program_json(tmp_path)
    assert (program["command"], program["args"]) == (["/bin/server", "--fast"], [])
    assert (program["uid"], program["gid"], program["env"], program["workdir"]) == (
        7,
        8,
        {"A": "b"},
        "/etc",
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar({"rootfs/x": b"x"}), "has no config.json"),
        (tar({"config.json": b"[]"}), "must be an object"),
        (tar({"config.json": b"{}"}), "object process"),
        (tar({"config.json": b'{"process": {"args": ["x"]}, "root": {"path": "/"}}'}), "root.path"),
        (tar({"config.json": b'{"process": {"args": []}, "root": {}}'}), "process.args"),
        (
            tar({"config.json": b'{"process": {"args": ["x"], "user": {"uid": -1}}, "root": {}}'}),
            "process.user",
        ),
    ],
)
def test_invalid_bundle_is_rejected_with_a_sentence(
    tmp_path: Path, content: bytes, words: str
) -> None:
    with pytest.raises(BadManifest, match=words):
        unpacked(tmp_path, content, "oci_bundle")


def test_hard_link_out_of_a_bundle_root_is_rejected(tmp_path: Path) -> None:
    for number, target in enumerate(("config.json", "rootfs/../config.json", "/etc/passwd")):
        content = bundle(link("./rootfs/x", target, HARD))
        with pytest.raises(BadArchive):
            unpacked(tmp_path / str(number), content, "oci_bundle")
