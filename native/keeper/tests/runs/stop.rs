//! Stops of runs with several processes: which of them get SIGTERM, how often, and how long they have.

use crate::run_fixture::{Run, available_modes, descendants};

/// A game server that saves for a moment after SIGTERM. A second SIGTERM ends it in the middle of that.
///
/// The handler starts a process, which must not get the signal.
const GAME_SERVER: &str = "trap 'trap - TERM; echo saving; sleep 0.1 && echo saved; exit 3' TERM; \
                           echo open; while :; do sleep 0.01; done";

/// Start scripts that do not pass SIGTERM on to the game server.
pub const START_SCRIPTS: [&str; 4] = [
    "sh -c \"$GAME_SERVER\"; echo never",
    "(sh -c \"$GAME_SERVER\"; true)& wait",
    "setsid sh -c \"$GAME_SERVER\"& wait",
    "setsid -f sh -c \"$GAME_SERVER\"; sleep 1000",
];

/// Start script that passes SIGTERM on, and ends with the exit code of the game server.
pub const FORWARDS: &str = "trap 'kill -TERM $!' TERM; sh -c \"$GAME_SERVER\"& \
                            while wait $!; code=$?; [ $code = 143 ]; do :; done; exit $code";

pub fn with_game_server(script: &str) -> String {
    format!("export GAME_SERVER=\"{GAME_SERVER}\"; {script}")
}

/// Runs a script until the game server in it is open, stops the run, and returns its exit code and output.
fn stopped_runs(script: &str) -> impl Iterator<Item = (String, String, Vec<String>)> {
    available_modes().into_iter().map(move |mode| {
        let run = Run::new(mode, &with_game_server(script), &[]).started();
        run.wait_for_line("o open");
        run.send_command("stop 25000");
        let state = run.wait_ended();
        assert_eq!(state["reason"], "stopped", "{mode:?}");
        assert!(descendants(run.number("keeper_pid")).is_empty(), "{mode:?}");
        (format!("{mode:?}"), state["exit_code"].clone(), run.stdout_lines())
    })
}

#[test]
fn every_process_behind_a_script_is_signalled_once() {
    for script in START_SCRIPTS {
        for (mode, exit_code, lines) in stopped_runs(script) {
            assert_eq!(lines, ["open", "saving", "saved"], "{script} {mode}");
            assert_eq!(exit_code, "143", "{script} {mode}: the exit code is that of the main process");
        }
    }
}

#[test]
fn only_a_main_process_that_catches_sigterm_is_signalled() {
    for (mode, exit_code, lines) in stopped_runs(FORWARDS) {
        assert_eq!(lines, ["open", "saving", "saved"], "{mode}: the signal arrives once");
        assert_eq!(exit_code, "3", "{mode}");
    }
}

#[test]
fn a_main_process_that_waits_for_a_blocked_sigterm_is_signalled_alone() {
    let waits = "exec perl -MPOSIX -e 'sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGTERM)); \
                 unless ($game = fork) { sigprocmask(SIG_UNBLOCK, POSIX::SigSet->new(SIGTERM)); \
                 exec q(sh), q(-c), $ENV{GAME_SERVER} } \
                 do { select undef, undef, undef, 0.01; sigpending($set = POSIX::SigSet->new) } \
                 until $set->ismember(SIGTERM); kill TERM => $game; waitpid $game, 0; exit 5'";
    for (mode, exit_code, lines) in stopped_runs(waits) {
        assert_eq!(lines, ["open", "saving", "saved"], "{mode}: the signal arrives once");
        assert_eq!(exit_code, "5", "{mode}");
    }
}

#[test]
fn processes_that_outlive_a_signalled_main_process_are_signalled_at_its_end() {
    let ends_first = "trap 'exit 4' TERM; sh -c \"$GAME_SERVER\"& wait; wait";
    for (mode, exit_code, lines) in stopped_runs(ends_first) {
        assert_eq!(lines, ["open", "saving", "saved"], "{mode}");
        assert_eq!(exit_code, "4", "{mode}");
    }
}

#[test]
fn processes_that_outlive_the_main_process_are_killed_at_the_timeout() {
    for mode in available_modes() {
        let script = "setsid sh -c 'trap \"\" TERM; echo up; while kill -0 $PPID; do sleep 0.01; done; \
                      echo alone; while :; do sleep 0.01; done' 2>/dev/null & wait";
        let run = Run::new(mode, script, &[]).started();
        run.wait_for_line("o up");
        run.send_command("stop 3600000");
        run.wait_for_line("o alone");
        run.send_command("stop 50");
        let state = run.wait_ended();
        assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("143", "stopped"), "{mode:?}");
        assert!(descendants(run.number("keeper_pid")).is_empty(), "{mode:?}");
    }
}

#[test]
fn processes_that_fork_during_a_stop_are_signalled() {
    for mode in available_modes() {
        let script = "perl -e '$| = 1; print qq(open\\n); for (1..500) { fork or sleep 3600 } sleep 3600' & wait";
        let run = Run::new(mode, script, &[]).started();
        run.wait_for_line("o open");
        run.send_command("stop 3600000");
        assert_eq!(run.wait_ended()["exit_code"], "143", "{mode:?}");
    }
}

#[test]
fn children_of_processes_that_die_during_a_stop_are_signalled() {
    // Each process of the chain forks the next one and ends by SIGTERM, which it blocks until then.
    let chain = "use POSIX; $| = 1; my $term = POSIX::SigSet->new(SIGTERM); sigprocmask(SIG_BLOCK, $term); \
                 print qq(open\n); for (1..1000) { \
                 if (fork) { sigprocmask(SIG_UNBLOCK, $term); exit } } sigprocmask(SIG_UNBLOCK, $term); sleep 3600";
    for mode in available_modes() {
        let run = Run::new(mode, &format!("perl -e '{chain}' & wait; exec sleep 3600"), &[]).started();
        run.wait_for_line("o open");
        run.send_command("stop 3600000");
        assert_eq!(run.wait_ended()["reason"], "stopped", "{mode:?}");
    }
}
