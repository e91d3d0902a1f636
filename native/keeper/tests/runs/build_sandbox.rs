//! Sandbox of build workers on machines that refuse parts of it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use libc::c_long;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::run_fixture::{KEEPER, USER};

/// A system call that the machine refuses, and the start of the report about it.
const REFUSED_CALLS: [(c_long, &str); 2] = [
    (libc::SYS_unshare, "a root file system of its own: "),
    (libc::SYS_landlock_create_ruleset, "file access rules: "),
];

/// Runs the sandbox on a machine that refuses a system call. `options` are those before the program.
fn run_refusing(call: Option<c_long>, options: &[String], program: &[&str]) -> Output {
    let mut command = Command::new(KEEPER);
    command.arg("--build-sandbox").arg(format!("uid={USER}")).args(options).args(program);
    if let Some(call) = call {
        let rules = [(call, vec![])].into_iter().collect();
        let architecture = std::env::consts::ARCH.try_into().expect("a known architecture");
        let refuse = SeccompAction::Errno(libc::EPERM as u32);
        let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)
            .and_then(TryInto::try_into)
            .expect("a filter");
        // SAFETY: the filter is ready before the fork.
        unsafe { command.pre_exec(move || apply_filter(&filter).map_err(std::io::Error::other)) };
    }
    command.output().expect("output")
}

fn system_options() -> Vec<String> {
    ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"].map(|path| format!("read={path}")).to_vec()
}

#[test]
fn refused_parts_are_printed() {
    let refused_here = String::from_utf8(run_refusing(None, &[], &[]).stdout).expect("text");
    for (call, start) in REFUSED_CALLS {
        let output = run_refusing(Some(call), &[], &[]);
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{start}");
        assert!(printed.lines().any(|line| line.starts_with(start)), "{start}: {printed}");
        let others: Vec<_> = printed.lines().filter(|line| !line.starts_with(start)).collect();
        assert!(others.iter().all(|line| refused_here.contains(line)), "{others:?}");
    }
}

#[test]
fn other_parts_hold_where_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (secret, target) = (folder.path().join("secret"), folder.path().join("target"));
    fs::write(&secret, "secret").expect("a file");
    fs::create_dir(&target).expect("a folder");
    let mut options = system_options();
    options.push(format!("write={}", target.display()));
    let succeeds = |call, program: &[&str]| {
        let program = [&["--"], program].concat();
        run_refusing(call, &options, &program).status.success()
    };
    let text = |path: &Path| path.display().to_string();
    for call in REFUSED_CALLS.map(|(call, _)| Some(call)).into_iter().chain([None]) {
        assert!(succeeds(call, &["/usr/bin/touch", &text(&target.join("file"))]), "{call:?}: the target is writable");
        assert!(!succeeds(call, &["/bin/cat", &text(&secret)]), "{call:?}: the secret is not readable");
        assert!(!succeeds(call, &["/usr/bin/touch", &text(&folder.path().join("other"))]), "{call:?}: nothing beside");
        let signal = format!("kill -0 {}", std::process::id());
        assert!(!succeeds(call, &["/bin/sh", "-c", &signal]), "{call:?}: no signals");
        assert!(!succeeds(call, &["/bin/sh", "-c", "/bin/true; exit 0"]), "{call:?}: no processes");
        let socket = "use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or exit 1";
        assert!(!succeeds(call, &["/usr/bin/perl", "-e", socket]), "{call:?}: no sockets");
        assert!(succeeds(call, &["/usr/bin/perl", "-e", "exit 0"]), "{call:?}: the program itself runs");
    }
    assert!(!folder.path().join("other").exists());
}

#[test]
fn unknown_options_are_refused() {
    for options in [&[][..], &["uid=0"], &["uid=x"], &["uid=1", "other=/"], &["uid=1", "word"]] {
        let status = Command::new(KEEPER).arg("--build-sandbox").args(options).output().expect("output").status;
        assert_eq!(status.code(), Some(64), "{options:?}");
    }
}
