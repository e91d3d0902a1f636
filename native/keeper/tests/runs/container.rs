//! A keeper as the main process of a container: signals, exit codes, and the end of all processes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::run_fixture::{KEEPER, descendants, wait_until};
use crate::stop::{FORWARDS, START_SCRIPTS, with_game_server};

const FLAG: &str = "--container";

fn start(words: &[&str]) -> Child {
    let mut keeper = Command::new(KEEPER);
    keeper.arg(FLAG).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    keeper.spawn().expect("keeper runs")
}

fn start_script(script: &str) -> Child {
    start(&["/bin/sh", "-c", script])
}

fn pid(child: &Child) -> i32 {
    child.id().try_into().expect("a PID")
}

fn stop(child: &Child) {
    kill_process(Pid::from_raw(pid(child)).expect("a PID"), Signal::TERM).expect("signalled");
}

/// Stops a script as soon as it has printed `open`. Returns the exit code, and the lines that follow.
fn stopped(script: &str) -> (Option<i32>, Vec<String>) {
    let mut child = start_script(&with_game_server(script));
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("a line"));
    assert_eq!(lines.next().as_deref(), Some("open"), "{script}");
    stop(&child);
    let rest = lines.collect();
    (child.wait().expect("an end").code(), rest)
}

#[test]
fn every_process_behind_a_script_is_signalled_once() {
    for script in START_SCRIPTS {
        let (exit_code, lines) = stopped(script);
        assert_eq!(lines, ["saving", "saved"], "{script}");
        assert_eq!(exit_code, Some(143), "{script}: the exit code is that of the main process");
    }
}

#[test]
fn only_a_main_process_that_catches_sigterm_is_signalled() {
    assert_eq!(stopped(FORWARDS), (Some(3), vec!["saving".to_owned(), "saved".to_owned()]));
}

#[test]
fn exit_code_is_that_of_the_program() {
    for (script, expected) in [("exit 5", 5), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)] {
        assert_eq!(start_script(script).wait().expect("an end").code(), Some(expected), "{script}");
    }
}

#[test]
fn program_that_cannot_start_is_named() {
    for (program, expected) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let output = start(&[program]).wait_with_output().expect("an end");
        assert_eq!(output.status.code(), Some(expected), "{program}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.starts_with(&format!("{program}: ")), "{message}");
    }
}

#[test]
fn other_processes_are_killed_when_the_program_ends_by_itself() {
    let mut child = start_script("setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & exit 0");
    assert_eq!(child.wait().expect("an end").code(), Some(0));
    // The pipe ends with the last process that has it.
    let mut rest = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(rest.next().is_none());
}

#[test]
fn program_has_a_session_of_its_own_and_is_found_once() {
    let child = start_script("sleep 3600; true");
    let is_started = || descendants(pid(&child)).len() == 2;
    wait_until(is_started, "the program runs");
    let command = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("a command line");
    wait_until(|| !command(pid(&child)).contains("sleep"), "the keeper hides the command");
    let [shell, _] = descendants(pid(&child))[..] else { panic!("two processes") };
    let stat = std::io::read_to_string(File::open(format!("/proc/{shell}/stat")).expect("a process")).expect("read");
    let session = stat.rsplit(')').next().expect("fields").split_ascii_whitespace().nth(3);
    assert_eq!(session, Some(shell.to_string().as_str()));
    stop(&child);
    let mut child = child;
    assert_eq!(child.wait().expect("an end").code(), Some(143));
}
