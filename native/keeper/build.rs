//! Compiles the seccomp profiles to filters of the target architecture, so that a start of a game server compiles
//! nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use seccompiler::{BpfProgram, TargetArch, compile_from_json};
use serde_json::{Value, json};

/// Profile of all game servers. The service passes the same file to OCI runtimes.
const PROFILE: &str = "../../pyservice/runtime/seccomp_profile.json";
const LANDLOCK_PROFILE: &str = "landlock_seccomp_profile.json";
const BUILD_PROFILE: &str = "build_seccomp_profile.json";
const FILTER: &str = "filter";

fn main() {
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    let architecture = TargetArch::try_from(architecture.as_str()).ok();
    let mut source = String::new();
    let profiles = [("PROFILE", PROFILE), ("LANDLOCK_PROFILE", LANDLOCK_PROFILE), ("BUILD_PROFILE", BUILD_PROFILE)];
    for (name, path) in profiles {
        println!("cargo::rerun-if-changed={path}");
        let filters = architecture.map_or_else(Vec::new, |architecture| compile(Path::new(path), architecture));
        let _ = writeln!(source, "pub const {name}: &[&[sock_filter]] = &[");
        for filter in filters {
            source.push_str("    &[\n");
            for one in filter {
                let (code, jt, jf, k) = (one.code, one.jt, one.jf, one.k);
                let _ = writeln!(source, "        sock_filter {{ code: {code}, jt: {jt}, jf: {jf}, k: {k} }},");
            }
            source.push_str("    ],\n");
        }
        source.push_str("];\n");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    fs::write(out.join("seccomp_filters.rs"), source).expect("written");
}

/// Returns the filters in the order of their installation.
///
/// The compiler takes one action for each filter. So there is one filter for the allowed calls, if others are refused
/// by default, and one for each error number. Of several filters that refuse a call, the kernel takes the error number
/// of the last one.
fn compile(path: &Path, architecture: TargetArch) -> Vec<BpfProgram> {
    let content = fs::read_to_string(path).expect("the profile");
    let profile: Value = serde_json::from_str(&content).expect("JSON");
    let mut rules_by_action: BTreeMap<(bool, u64), Vec<Value>> = BTreeMap::new();
    let default = action(&profile["defaultAction"], &profile["defaultErrnoRet"]);
    for entry in profile["syscalls"].as_array().expect("rules") {
        let conditions: Vec<Value> = entry["args"].as_array().into_iter().flatten().map(condition).collect();
        let rules = rules_by_action.entry(action(&entry["action"], &entry["errnoRet"])).or_default();
        for name in entry["names"].as_array().expect("names").iter().filter(|name| is_known(name, architecture)) {
            rules.push(match conditions.is_empty() {
                true => json!({"syscall": name}),
                false => json!({"syscall": name, "args": conditions}),
            });
        }
    }
    let filter = |(match_action, rules)| {
        let mismatch_action = if match_action == ALLOW { default } else { ALLOW };
        compile_filter(match_action, mismatch_action, &Value::Array(rules), architecture).expect("a filter")
    };
    rules_by_action.into_iter().filter(|(match_action, _)| *match_action != default).map(filter).collect()
}

/// Whether a call is refused, and its error number. Allowed calls are first in the order.
type Action = (bool, u64);
const ALLOW: Action = (false, 0);

fn action(name: &Value, error_number: &Value) -> Action {
    match name.as_str() {
        Some("SCMP_ACT_ALLOW") => ALLOW,
        Some("SCMP_ACT_ERRNO") => (true, error_number.as_u64().expect("an error number")),
        _ => panic!("action {name}"),
    }
}

fn condition(argument: &Value) -> Value {
    let value = &argument["value"];
    let (operator, value) = match argument["op"].as_str() {
        Some("SCMP_CMP_EQ") => (json!("eq"), value),
        Some("SCMP_CMP_NE") => (json!("ne"), value),
        Some("SCMP_CMP_GT") => (json!("gt"), value),
        Some("SCMP_CMP_MASKED_EQ") => (json!({"masked_eq": value}), &argument["valueTwo"]),
        operator => panic!("operator {operator:?}"),
    };
    // The kernel reads 32 bits of these arguments, except of a pointer that is compared by inequality.
    let length = if argument["op"] == "SCMP_CMP_NE" { "qword" } else { "dword" };
    json!({"index": argument["index"], "type": length, "op": operator, "val": value})
}

fn is_known(name: &Value, architecture: TargetArch) -> bool {
    compile_filter(ALLOW, (true, 1), &json!([{"syscall": name}]), architecture).is_ok()
}

fn compile_filter(
    matched: Action,
    mismatched: Action,
    rules: &Value,
    architecture: TargetArch,
) -> Result<BpfProgram, seccompiler::Error> {
    let action = |(is_refused, error_number)| if is_refused { json!({"errno": error_number}) } else { json!("allow") };
    let filters =
        json!({FILTER: {"match_action": action(matched), "mismatch_action": action(mismatched), "filter": rules}});
    Ok(compile_from_json(filters.to_string().as_bytes(), architecture)?.remove(FILTER).expect("the filter"))
}
