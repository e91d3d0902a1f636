"""Generator of pyservice/pb from the protos, errors.toml and the examples in this folder.

`python proto/generate.py` writes the files. `--check` writes nothing and fails if a checked-in file is
out of date. `--lint` runs buf. Imported protos of other projects come from installed packages.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import re
import shutil
import string
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import MutableSequence, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc_tools
import protovalidate
from google.protobuf import descriptor, descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
ROOT = PROTO.parent
TARGET = ROOT / "pyservice" / "pb"
# Entries of TARGET that only this script writes.
GENERATED = ("hosting", "errors.py", "comments.py", "examples.py")
# The part of the contract that native code needs.
NATIVE_TARGET = ROOT / "native" / "matchmaker" / "src" / "contract.rs"
NATIVE_CONTRACT = "contract.rs"
# Messages that native code reads from JSON and checks.
NATIVE_MESSAGES = (
    "FindLobbyRequest",
    "HeartbeatRequest",
    "JoinLobbyRequest",
    "ListLobbiesRequest",
    "PlayerConnectedRequest",
    "PlayerDisconnectedRequest",
    "PlayerTokens",
    "SetLobbyClosedRequest",
)
FORMS = {
    descriptor.FieldDescriptor.TYPE_BOOL: "Bool",
    descriptor.FieldDescriptor.TYPE_STRING: "Text",
    descriptor.FieldDescriptor.TYPE_UINT32: "Number",
}
EXAMPLES = PROTO / "examples"
SAMPLES = "samples"
EXAMPLE_FIELDS = ("token", "path", "query", "body")
# Installed packages contain the imported protos: google/api in site-packages, well-known types in grpcio-tools.
INCLUDES = (
    PROTO,
    Path(sysconfig.get_paths()["purelib"]),
    Path(grpc_tools.__file__).parent / "_proto",
)
OUR_IMPORT = re.compile(r"^from (hosting|buf)\.", re.MULTILINE)


def our_files() -> list[str]:
    """Returns the names of our proto files in the form that proto imports use."""
    return sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))


def run_protoc(work: Path, *outputs: str, files: Sequence[str] = ()) -> None:
    """Runs protoc over `files`, or over all proto files of this repository."""
    # protovalidate ships its rules as a descriptor set, not as a .proto file.
    rules = descriptor_pb2.FileDescriptorProto.FromString(
        protovalidate.ViolationPb.desc().file.proto.to_binary()
    )
    third_party = work / "third_party.binpb"
    third_party.write_bytes(descriptor_pb2.FileDescriptorSet(file=[rules]).SerializeToString())
    arguments = ["protoc", f"--descriptor_set_in={third_party}"]
    arguments += [f"-I{folder}" for folder in INCLUDES]
    if protoc.main([*arguments, *outputs, *(files or our_files())]) != 0:
        raise SystemExit("protoc failed")


def generate(work: Path) -> Path:
    """Generates all files into a new folder below `work` and returns that folder."""
    out = work / "pb"
    out.mkdir()
    run_protoc(work, f"--python_out={out}", f"--pyi_out={out}")
    # The service itself calls methods by their descriptors. Users import the stubs of the public ones.
    public = [name for name in our_files() if not name.startswith("hosting/internal/")]
    run_protoc(work, f"--grpc_python_out={out}", files=public)
    for path in sorted(out.rglob("*_pb2*.py*")):
        text = path.read_text()
        if path.name.endswith("_pb2_grpc.py") and "Stub" not in text:
            path.unlink()  # a file without a service
            continue
        path.write_text(OUR_IMPORT.sub(r"from pyservice.pb.\1.", text))
    for folder in sorted({path.parent for path in out.rglob("*.py")} | {out / "hosting"}):
        for package in (folder, *folder.parents):
            if package == out:
                break
            name = package.relative_to(out).as_posix().replace("/", ".")
            (package / "__init__.py").write_text(f'"""Generated: messages of {name}."""\n')
    (out / "errors.py").write_text(error_table())
    (out / "comments.py").write_text(comment_table(work))
    (out / "examples.py").write_text(example_table())
    (out / NATIVE_CONTRACT).write_text(native_contract(work))
    return out


def read_errors() -> dict[str, Any]:
    """Returns the content of errors.toml. Its words can contain shared values."""
    table = tomllib.loads((PROTO / "errors.toml").read_text())
    words = {word: text.format_map(table["shared"]) for word, text in table["words"].items()}
    return {**table, "words": words}


def error_table() -> str:
    """Returns the table of errors as the source of a Python module."""
    table = read_errors()
    lines = [
        '"""Generated from proto/errors.toml: HTTP and gRPC form of each error code."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final, NamedTuple",
        "",
        "",
        "class ErrorRow(NamedTuple):",
        '    """One error code. ``grpc`` is the name of a status, or None if the code has no gRPC form."""',
        "",
        "    http: int",
        "    grpc: str | None",
        "    fault: str",
        "    title: str",
        "    detail: str",
        "    retry_after_s: int | None",
        "",
        "",
        "TABLE: Final[dict[str, ErrorRow]] = {",
    ]
    for code, row in table["codes"].items():
        fields = (row["http"], row.get("grpc"), row["fault"], row["title"], row["detail"])
        lines.append(f'    "{code}": ErrorRow(')
        lines += [f"        {quoted(value)}," for value in (*fields, row.get("retry_after_s"))]
        lines.append("    ),")
    lines += ["}", "", "WORDS: Final[dict[str, str]] = {"]
    lines += [f"    {quoted(word)}: {quoted(text)}," for word, text in table["words"].items()]
    lines += ["}", ""]
    lines += [f"{name.upper()}: Final = {quoted(value)}" for name, value in table["shared"].items()]
    return "\n".join(lines) + "\n"


def native_contract(work: Path) -> str:
    """Returns the table of errors, and the fields and limits of messages, as the source of a Rust module."""
    table = read_errors()
    words = table["words"]
    lines = [
        "//! Generated from proto/errors.toml and the protos: error codes, problem words, fields, and limits.",
        "",
        *native_errors(table["codes"]),
        "",
        "/// Form of a field in JSON. Lists and maps have a limit of entries.",
        "#[derive(Clone, Copy)]",
        "pub enum Form {",
        "    Text,",
        "    Number,",
        "    Bool,",
        "    Texts(usize),",
        "    TextMap(usize),",
        "    /// Python reads the field.",
        "    Other,",
        "}",
        "",
        "pub type Fields = &'static [(&'static str, Form)];",
        "",
        f"pub const WORDS: [(&str, &str); {len(words)}] = [",
        *(f"    ({quoted(word)}, {quoted(text)})," for word, text in words.items()),
        "];",
        "",
        *(native_value(name, value) for name, value in table["shared"].items()),
        "",
        *message_rules(work),
    ]
    formatted = subprocess.run(
        ["rustfmt", "--edition=2024", "--config-path", ROOT],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return formatted.stdout


def native_value(name: str, value: str | int) -> str:
    """Returns a shared value as a constant. A sentence with numbers is a function."""
    if isinstance(value, int):
        return f"pub const {name.upper()}: usize = {value};"
    numbers = [field for _, field, _, _ in string.Formatter().parse(value) if field]
    if not numbers:
        return f"pub const {name.upper()}: &str = {quoted(value)};"
    parameters = ", ".join(f"{number}: usize" for number in numbers)
    return f"pub fn {name}({parameters}) -> String {{ format!({quoted(value)}) }}"


def native_errors(codes: dict[str, Any]) -> list[str]:
    lines = [
        "/// Code of an error.",
        "#[derive(Debug, Clone, Copy, PartialEq, Eq)]",
        "pub enum Code {",
        *(f"    {camel_case(code)}," for code in codes),
        "}",
        "",
        "/// HTTP and gRPC form of an error code.",
        "pub struct ErrorRow {",
        "    pub code: Code,",
        "    pub slug: &'static str,",
        "    pub http_status: u16,",
        "    /// Number of the gRPC status.",
        "    pub grpc_status: i32,",
        "    pub title: &'static str,",
        "    pub detail: &'static str,",
        "    pub retry_after_s: Option<u32>,",
        "}",
        "",
        "/// In the order of [`Code`].",
        f"pub const ERRORS: [ErrorRow; {len(codes)}] = [",
    ]
    for code, row in codes.items():
        # Errors that occur only over HTTP have the status INTERNAL.
        status = grpc.StatusCode[row.get("grpc", "INTERNAL")].value[0]
        retry = row.get("retry_after_s")
        lines += [
            "    ErrorRow {",
            f"        code: Code::{camel_case(code)},",
            f"        slug: {quoted(code)},",
            f"        http_status: {row['http']},",
            f"        grpc_status: {status},",
            f"        title: {quoted(row['title'])},",
            f"        detail: {quoted(row['detail'])},",
            f"        retry_after_s: {'None' if retry is None else f'Some({retry})'},",
            "    },",
        ]
    return [*lines, "];"]


def camel_case(code: str) -> str:
    return "".join(word.capitalize() for word in code.split("_"))


def message_rules(work: Path) -> list[str]:
    """Returns the fields of NATIVE_MESSAGES, with their numeric limits and patterns, as Rust constants."""
    image = work / "limits.binpb"
    run_protoc(work, f"--descriptor_set_out={image}", "--include_imports")
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes())
    for file in files.file:
        pool.Add(file)
    options = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("google.protobuf.FieldOptions")
    )
    message_factory.GetMessageClassesForFiles([file.name for file in files.file], pool)

    def option(field: Any, name: str) -> Any:
        extension: Any = pool.FindExtensionByName(name)
        return options.FromString(field.GetOptions().SerializeToString()).Extensions[extension]

    def form(field: Any) -> str:
        if option(field, "hosting.v1.form").unwrap:
            return form(field.message_type.fields[0])
        rules = option(field, "buf.validate.field")
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return f"TextMap({rules.map.max_pairs})"
        if field.is_repeated:
            return f"Texts({rules.repeated.max_items})"
        return FORMS.get(field.type, "Other")

    lines = []
    for name in NATIVE_MESSAGES:
        fields = pool.FindMessageTypeByName(f"hosting.v1.{name}").fields
        rows = ", ".join(f"({quoted(field.name)}, Form::{form(field)})" for field in fields)
        lines.append(f"pub const {snake_case(name).upper()}_FIELDS: Fields = &[{rows}];")
        for field in fields:
            prefix = f"{snake_case(name)}_{field.name}".upper()
            lines += rule_constants(prefix, option(field, "buf.validate.field"))
    return [*lines, *body_limits(pool)]


def body_limits(pool: Any) -> list[str]:
    """Returns the body limits of the matchmaker's operations as Rust constants."""
    extension: Any = pool.FindExtensionByName("hosting.v1.operation")
    options = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("google.protobuf.MethodOptions")
    )
    lines = []
    for method in pool.FindServiceByName("hosting.v1.Matchmaker").methods:
        operation = options.FromString(method.GetOptions().SerializeToString()).Extensions[
            extension
        ]
        if operation.body_limit_bytes:
            name = f"{snake_case(method.name)}_BODY_BYTES_MAX".upper()
            lines.append(f"pub const {name}: usize = {operation.body_limit_bytes};")
    return lines


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)


def rule_constants(prefix: str, rules: Any) -> list[str]:
    lines: list[str] = []
    for rule, value in rules.ListFields():
        if rule.message_type is not None and not rule.is_repeated:
            is_part = rule.name in ("items", "keys", "values")
            lines += rule_constants(f"{prefix}_{rule.name.upper()}" if is_part else prefix, value)
        elif rule.name == "pattern":
            lines.append(f"pub const {prefix}_PATTERN: &str = {quoted(value)};")
        elif isinstance(value, int) and not isinstance(value, bool):
            lines.append(f"pub const {prefix}_{rule.name.upper()}: usize = {value};")
    return lines


def comment_table(work: Path) -> str:
    """Returns the comments of the public protos as a Python module.

    Descriptors at run time have no comments.
    """
    image = work / "comments.binpb"
    run_protoc(work, f"--descriptor_set_out={image}", "--include_source_info")
    found: dict[str, str] = {}
    for file in descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file:
        if not file.name.startswith("hosting/v1/"):
            continue
        for location in file.source_code_info.location:
            name = described(file, list(location.path))
            if name and location.leading_comments:
                found[name] = " ".join(location.leading_comments.split())
    lines = [
        '"""Generated from the protos: comments of services, methods, messages, fields and enums."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final",
        "",
        "COMMENTS: Final[dict[str, str]] = {",
    ]
    lines += [f"    {quoted(name)}: {quoted(text)}," for name, text in sorted(found.items())]
    return "\n".join([*lines, "}"]) + "\n"


def described(file: descriptor_pb2.FileDescriptorProto, path: list[int]) -> str:
    """Returns the full name of the element at a source-info path, or an empty text if it has no name."""
    thing: Any = file
    names = [file.package]
    for number, index in zip(path[::2], path[1::2], strict=False):
        things = getattr(thing, thing.DESCRIPTOR.fields_by_number[number].name)
        if not isinstance(things, Sequence | MutableSequence) or index >= len(things):
            return ""
        thing = things[index]
        names.append(getattr(thing, "name", ""))
    return ".".join(names) if len(path) % 2 == 0 and path and all(names) else ""


def example_table() -> str:
    """Returns the examples as a Python module. Exits on an unknown field or a repeated slug."""
    files = {path.stem: tomllib.loads(path.read_text()) for path in sorted(EXAMPLES.glob("*.toml"))}
    samples = files.pop(SAMPLES)
    lines = [
        '"""Generated from proto/examples: one request for each operation, by slug. Tests send these requests."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final, NamedTuple",
        "",
        "",
        "class Example(NamedTuple):",
        '    """A request. ``{name}`` in a value is a placeholder. ``body`` is JSON text."""',
        "",
        "    token: str | None = None",
        "    path: dict[str, str] = {}",
        "    query: dict[str, str] = {}",
        "    body: str | None = None",
        "",
        "",
        "EXAMPLES: Final[dict[str, Example]] = {",
    ]
    seen: dict[str, str] = {}
    for stem, rows in files.items():
        for slug, row in rows.items():
            if set(row) - set(EXAMPLE_FIELDS) or slug in seen:
                raise SystemExit(
                    f"examples/{stem}.toml: {slug} is there twice or has unknown fields"
                )
            seen[slug] = stem
            given = ", ".join(f"{field}={row[field]!r}" for field in EXAMPLE_FIELDS if field in row)
            lines.append(f"    {quoted(slug)}: Example({given}),")
    lines += ["}", "", "SAMPLES: Final[dict[str, str]] = {"]
    lines += [f"    {quoted(name)}: {quoted(value)}," for name, value in samples.items()]
    return "\n".join([*lines, "}"]) + "\n"


def quoted(value: str | int | None) -> str:
    """Returns a value as Python source, with text in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def files_below(folder: Path) -> set[Path]:
    """Returns the relative paths of all generated files below a folder."""
    found: set[Path] = set()
    for name in GENERATED:
        root = folder / name
        found |= {root} if root.is_file() else set(root.rglob("*.py")) | set(root.rglob("*.pyi"))
    return {path.relative_to(folder) for path in found if path.is_file()}


def differences(fresh: Path) -> list[str]:
    """Returns a line for each checked-in file that differs from the generated one."""
    wanted, present = files_below(fresh), files_below(TARGET)
    changed = {
        path
        for path in wanted & present
        if not filecmp.cmp(fresh / path, TARGET / path, shallow=False)
    }
    lines = sorted(
        [f"missing: {path}" for path in wanted - present]
        + [f"left over: {path}" for path in present - wanted]
        + [f"out of date: {path}" for path in changed]
    )
    if is_native_contract_changed(fresh):
        lines.append(f"out of date: {NATIVE_TARGET.relative_to(ROOT)}")
    return lines


def is_native_contract_changed(fresh: Path) -> bool:
    wanted = (fresh / NATIVE_CONTRACT).read_text()
    return not NATIVE_TARGET.exists() or NATIVE_TARGET.read_text() != wanted


def install(fresh: Path) -> None:
    """Replaces only the files that differ, so that unchanged files keep their timestamps."""
    wanted = files_below(fresh)
    for path in files_below(TARGET) - wanted:
        (TARGET / path).unlink()
    for path in wanted:
        target = TARGET / path
        if not target.exists() or not filecmp.cmp(fresh / path, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fresh / path, target)
    if is_native_contract_changed(fresh):
        shutil.copyfile(fresh / NATIVE_CONTRACT, NATIVE_TARGET)


def lint(work: Path) -> int:
    """Runs buf over a descriptor set of protoc. On source files, buf would download imported protos."""
    image = work / "image.binpb"
    run_protoc(work, f"--descriptor_set_out={image}", "--include_imports", "--include_source_info")
    buf: list[Path | str] = [Path(sys.executable).parent / "buf"]
    configuration = ROOT / "buf.yaml"
    # The descriptor set includes imported protos. `--path` limits the rules to this repository's package.
    rules = [*buf, "lint", image, "--config", configuration, "--path", "hosting"]
    form = [*buf, "format", "--diff", "--exit-code", PROTO]
    return max(
        subprocess.run(command, cwd=ROOT, check=False).returncode for command in (rules, form)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="fail when generated files are out of date"
    )
    parser.add_argument("--lint", action="store_true", help="run buf lint and buf format")
    options = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if options.lint:
            status = lint(work)
        if options.check:
            found = differences(generate(work))
            for line in found:
                print(line, file=sys.stderr)
            if found:
                print("run: make generate", file=sys.stderr)
                status = 1
        elif not options.lint:
            install(generate(work))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
