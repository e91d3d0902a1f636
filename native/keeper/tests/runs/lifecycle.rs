//! Runs from the start of their program to its end.

use std::fs;

use crate::run_fixture::{NONE, Run, available_modes, descendants, is_alive, wait_until};

#[test]
fn output_and_exit_code_are_recorded() {
    for mode in available_modes() {
        let run = Run::new(mode, "echo one; echo two >&2; printf three; exit 7", &[]).started();
        let state = run.wait_ended();
        assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("7", "exited"), "{mode:?}");
        let mut log = run.log();
        log.sort();
        assert_eq!(log, ["e two", "o one", "o three"], "{mode:?}");
        assert!(state["ended_us"].parse::<u64>().expect("us") >= state["started_us"].parse().expect("us"));
    }
}

#[test]
fn foreign_signal_is_recorded_as_killed() {
    for mode in available_modes() {
        let state = Run::new(mode, "kill -SEGV $$", &[]).started().wait_ended();
        assert_eq!(state["exit_code"], "139", "{mode:?}");
        assert_eq!(state["reason"], "killed", "{mode:?}");
    }
}

#[test]
fn program_that_handles_sigterm_is_stopped() {
    for mode in available_modes() {
        let run = Run::new(mode, "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.01; done", &[]);
        let run = run.started();
        run.wait_for_line("o up");
        run.send_command("stop 20000");
        let state = run.wait_ended();
        assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("4", "stopped"), "{mode:?}");
        assert!(run.log().iter().any(|line| line == "o bye"), "{mode:?}: {:?}", run.log());
    }
}

#[test]
fn program_that_ignores_sigterm_is_killed_with_its_descendants() {
    for mode in available_modes() {
        let script = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo child; sleep 1000' &) ; echo up; sleep 1000";
        let run = Run::new(mode, script, &[]).started();
        run.wait_for_line("o child");
        let below = descendants(run.number("keeper_pid"));
        assert!(below.len() >= 3, "{mode:?}: {below:?}");
        run.send_command("stop 100");
        let state = run.wait_ended();
        assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("137", "stopped"), "{mode:?}");
        assert!(!below.iter().any(|&pid| is_alive(pid)), "{mode:?}");
    }
}

#[test]
fn daemonized_descendants_end_with_the_program() {
    for mode in available_modes() {
        let run = Run::new(mode, "(setsid sleep 1000 &) ; (setsid sleep 1000 &) ; exit 0", &[]).started();
        let keeper = run.number("keeper_pid");
        assert_eq!(run.wait_ended()["reason"], "exited", "{mode:?}");
        wait_until(|| descendants(keeper).is_empty(), "all processes have ended");
    }
}

#[test]
fn stopped_process_receives_sigterm() {
    for mode in available_modes() {
        let run = Run::new(mode, "trap 'exit 5' TERM; echo up; kill -STOP $$; while :; do sleep 0.01; done", &[]);
        let run = run.started();
        wait_until(|| run.has_stopped_process(), "it is suspended");
        run.send_command("stop 25000");
        assert_eq!(run.wait_ended()["exit_code"], "5", "{mode:?}");
    }
}

#[test]
fn stopped_process_is_killed() {
    for mode in available_modes() {
        let run = Run::new(mode, "(setsid sh -c 'kill -STOP $$' &); kill -STOP $$", &[]).started();
        wait_until(|| run.has_stopped_process(), "it is suspended");
        run.send_command("stop 0");
        assert_eq!(run.wait_ended()["exit_code"], "137", "{mode:?}");
        assert!(descendants(run.number("keeper_pid")).is_empty(), "{mode:?}");
    }
}

#[test]
fn earliest_stop_deadline_wins() {
    let run = Run::of_shell("trap '' TERM; echo up; while :; do sleep 1; done").started();
    run.wait_for_line("o up");
    run.send_command("stop 3600000");
    wait_until(|| run.state()["status"] == "stopping", "it is stopping");
    run.send_command("stop 0\nstop 3600000");
    assert_eq!(run.wait_ended()["exit_code"], "137");
}

#[test]
fn notifications_report_states_and_log_growth() {
    let outside = tempfile::tempdir().expect("a folder");
    let path = outside.path().join("notify");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).expect("fifo");
    let reader = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open for both");
    let notify = format!("notify={}", path.display());
    let run = Run::new(NONE, "echo up; read x < go; echo more; exit 0", &[&notify]);
    rustix::fs::mkfifoat(rustix::fs::CWD, run.path("scratch/go"), rustix::fs::Mode::RWXU).expect("fifo");
    let run = run.started();
    run.wait_for_line("o up");
    run.send_command("follow 60000");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(reader)).map(|line| line.expect("a line"));
    assert_eq!(lines.next().as_deref(), Some("one state"));
    assert_eq!(lines.next().as_deref(), Some("one log"));
    fs::write(run.path("scratch/go"), "x\n").expect("written");
    assert_eq!(lines.find(|line| line == "one state").as_deref(), Some("one state"));
    assert_eq!(run.state()["status"], "ended");
}

#[test]
fn process_that_forks_and_exits_repeatedly_is_killed() {
    for mode in available_modes() {
        // Each process exits as soon as it has a child.
        let script = "perl -e 'while (1) { exit if fork; open F, \">flees\" if ++$n == 500 }' & \
                      until [ -e flees ]; do sleep 0.01; done; exit 0";
        let run = Run::new(mode, script, &[]).started();
        let keeper = run.number("keeper_pid");
        assert_eq!(run.wait_ended()["reason"], "exited", "{mode:?}");
        wait_until(|| !is_alive(keeper), "the keeper exits");
    }
}

#[test]
fn program_can_reopen_its_streams() {
    for mode in available_modes() {
        let run = Run::new(mode, "echo one > /proc/self/fd/1; echo two > /proc/self/fd/2", &[]).started();
        run.wait_ended();
        let mut log = run.log();
        log.sort();
        assert_eq!(log, ["e two", "o one"], "{mode:?}");
    }
}
