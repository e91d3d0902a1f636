//! From the start of a program to its end.

use std::fs;

use crate::folder::{NONE, Run, descendants, is_alive, possible, until};

#[test]
fn what_a_program_writes_and_how_it_ends_is_kept() {
    for way in possible() {
        let run = Run::new(way, "echo one; echo two >&2; printf three; exit 7", &[]).begun();
        let state = run.ended();
        assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("7", "exited"), "{way:?}");
        let mut log = run.log();
        log.sort();
        assert_eq!(log, ["e two", "o one", "o three"], "{way:?}");
        assert!(state["ended_us"].parse::<u64>().expect("us") >= state["started_us"].parse().expect("us"));
    }
}

#[test]
fn a_signal_that_is_not_ours_is_told_as_its_number() {
    for way in possible() {
        let state = Run::new(way, "kill -SEGV $$", &[]).begun().ended();
        assert_eq!(state["exit_code"], "139", "{way:?}");
        assert_eq!(state["reason"], "killed", "{way:?}");
    }
}

#[test]
fn who_ends_when_asked_has_stopped() {
    for way in possible() {
        let run = Run::new(way, "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.01; done", &[]);
        let run = run.begun();
        run.says("o up");
        run.tell("stop 20000");
        let state = run.ended();
        assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("4", "stopped"), "{way:?}");
        assert!(run.log().iter().any(|line| line == "o bye"), "{way:?}: {:?}", run.log());
    }
}

#[test]
fn who_ignores_sigterm_is_killed_at_the_deadline_with_all_that_it_started() {
    for way in possible() {
        let script = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo child; sleep 1000' &) ; echo up; sleep 1000";
        let run = Run::new(way, script, &[]).begun();
        run.says("o child");
        let below = descendants(run.number("keeper_pid"));
        assert!(below.len() >= 3, "{way:?}: {below:?}");
        run.tell("stop 100");
        let state = run.ended();
        assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("137", "stopped"), "{way:?}");
        assert!(!below.iter().any(|&pid| is_alive(pid)), "{way:?}");
    }
}

#[test]
fn what_forks_away_ends_with_the_first_process() {
    for way in possible() {
        let run = Run::new(way, "(setsid sleep 1000 &) ; (setsid sleep 1000 &) ; exit 0", &[]).begun();
        let keeper = run.number("keeper_pid");
        assert_eq!(run.ended()["reason"], "exited", "{way:?}");
        until(|| descendants(keeper).is_empty(), "nobody is left");
    }
}

#[test]
fn a_suspended_program_hears_that_it_is_to_end() {
    for way in possible() {
        let run = Run::new(way, "trap 'exit 5' TERM; echo up; kill -STOP $$; while :; do sleep 0.01; done", &[]);
        let run = run.begun();
        until(|| run.is_any_suspended(), "it is suspended");
        run.tell("stop 25000");
        assert_eq!(run.ended()["exit_code"], "5", "{way:?}");
    }
}

#[test]
fn a_suspended_program_is_killed_like_any_other() {
    for way in possible() {
        let run = Run::new(way, "(setsid sh -c 'kill -STOP $$' &); kill -STOP $$", &[]).begun();
        until(|| run.is_any_suspended(), "it is suspended");
        run.tell("stop 0");
        assert_eq!(run.ended()["exit_code"], "137", "{way:?}");
        assert!(descendants(run.number("keeper_pid")).is_empty(), "{way:?}");
    }
}

#[test]
fn the_soonest_of_several_deadlines_wins() {
    let run = Run::of_shell("trap '' TERM; echo up; while :; do sleep 1; done").begun();
    run.says("o up");
    run.tell("stop 3600000");
    until(|| run.state()["status"] == "stopping", "it is stopping");
    run.tell("stop 0");
    run.tell("stop 3600000");
    assert_eq!(run.ended()["exit_code"], "137");
}

#[test]
fn who_follows_is_told_of_growth_and_of_each_state() {
    let outside = tempfile::tempdir().expect("a folder");
    let path = outside.path().join("notify");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).expect("fifo");
    let reader = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open for both");
    let notify = format!("notify={}", path.display());
    let run = Run::new(NONE, "echo up; read x < go; echo more; exit 0", &[&notify]);
    rustix::fs::mkfifoat(rustix::fs::CWD, run.path("scratch/go"), rustix::fs::Mode::RWXU).expect("fifo");
    let run = run.begun();
    run.says("o up");
    run.tell("follow 60000");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(reader)).map(|line| line.expect("a line"));
    assert_eq!(lines.next().as_deref(), Some("one state"));
    assert_eq!(lines.next().as_deref(), Some("one log"));
    fs::write(run.path("scratch/go"), "x\n").expect("told");
    assert_eq!(lines.find(|line| line == "one state").as_deref(), Some("one state"));
    assert_eq!(run.state()["status"], "ended");
}

#[test]
fn who_is_never_the_same_process_for_long_is_caught() {
    for way in possible() {
        // Each of them ends as soon as it has a child, which goes on.
        let script = "perl -e 'while (1) { exit if fork; open F, \">flees\" if ++$n == 500 }' & \
                      until [ -e flees ]; do sleep 0.01; done; exit 0";
        let run = Run::new(way, script, &[]).begun();
        let keeper = run.number("keeper_pid");
        assert_eq!(run.ended()["reason"], "exited", "{way:?}");
        until(|| !is_alive(keeper), "nobody is left, so the keeper goes");
    }
}

#[test]
fn a_program_may_open_its_streams_by_their_names() {
    for way in possible() {
        let run = Run::new(way, "echo one > /proc/self/fd/1; echo two > /proc/self/fd/2", &[]).begun();
        run.ended();
        let mut log = run.log();
        log.sort();
        assert_eq!(log, ["e two", "o one"], "{way:?}");
    }
}
