//! A folder is one run, whatever happens while it starts.

use std::fs;

use rustix::fs::{FlockOperation, flock};

use crate::folder::{Run, descendants, is_alive, possible, until};

#[test]
fn a_folder_is_one_run_while_it_runs_and_ever_after() {
    let run = Run::of_shell("echo up; sleep 1000").begun();
    run.says("o up");
    let pid = run.number("pid");
    assert_eq!(run.keep().status.code(), Some(75));
    assert!(is_alive(pid));
    run.tell("stop 0");
    let state = run.ended();
    until(|| !is_alive(state["keeper_pid"].parse().expect("pid")), "the keeper goes");
    assert_eq!(run.keep().status.code(), Some(75));
    assert_eq!(run.state(), state);
}

#[test]
fn a_spec_that_cannot_be_used_starts_nothing_and_leaves_the_folder_for_another_try() {
    let run = Run::of_shell("exit 0");
    let good = fs::read(run.path("spec")).expect("spec");
    fs::write(run.path("spec"), [good.clone(), b"bogus=1\0".to_vec()].concat()).expect("spec");
    let refused = run.keep();
    assert_eq!(refused.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unknown key"));
    assert!(run.state().is_empty(), "nothing was said");
    fs::write(run.path("spec"), good).expect("spec");
    assert_eq!(run.begun().ended()["exit_code"], "0");
}

#[test]
fn what_cannot_be_run_says_why() {
    for way in possible() {
        let run = Run::new(way, "", &[]);
        let spec =
            fs::read_to_string(run.path("spec")).expect("spec").replace("command=/bin/sh", "command=/bin/nothing");
        fs::write(run.path("spec"), spec).expect("spec");
        let state = run.begun().ended();
        assert_eq!(state["reason"], "exec_failed", "{way:?}");
        assert!(state["message"].contains("/bin/nothing: No such file"), "{way:?}: {}", state["message"]);
        assert!(!state.contains_key("exit_code"), "{way:?}");
    }
}

#[test]
fn nothing_runs_on_when_its_keeper_is_killed() {
    for way in possible() {
        // Where process ids are its own, what forked away goes too.
        let script = if way.has_own_processes() {
            "(setsid sleep 1000 &); echo up; sleep 1000"
        } else {
            "echo up; exec sleep 1000"
        };
        let run = Run::new(way, script, &[]).begun();
        run.says("o up");
        let below = descendants(run.number("keeper_pid"));
        let (keeper, program) = (run.number("keeper_pid"), run.number("pid"));
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(keeper).expect("pid"),
            rustix::process::Signal::KILL,
        )
        .expect("killed");
        until(|| !is_alive(program) && !below.iter().any(|&pid| is_alive(pid)), "the program goes with it");
        assert_eq!(run.state()["status"], "running", "{way:?}: nobody says that it ended");
        assert_eq!(run.keep().status.code(), Some(75), "{way:?}");
    }
}

#[test]
fn who_only_looks_whether_a_folder_is_kept_does_not_keep_it_from_starting() {
    let run = Run::of_shell("echo up");
    let look = fs::File::create(run.path("state")).expect("state");
    flock(&look, FlockOperation::NonBlockingLockExclusive).expect("free");
    let mut keeper = run.keeper().spawn().expect("keeper runs");
    let fds = format!("/proc/{}/fd", keeper.id());
    let lock = fs::canonicalize(run.path("state")).expect("state");
    let has_it_open = || {
        let open = fs::read_dir(&fds).into_iter().flatten().flatten();
        open.filter_map(|one| fs::read_link(one.path()).ok()).any(|target| target == lock)
    };
    until(|| has_it_open() || keeper.try_wait().expect("ours").is_some(), "the keeper tries");
    drop(look);
    assert_eq!(keeper.wait().expect("ended").code(), Some(0));
    assert_eq!(run.ended()["exit_code"], "0");
}

#[test]
fn a_sentence_about_a_strange_name_stays_one_line() {
    let run = Run::of_shell("");
    let spec = fs::read_to_string(run.path("spec")).expect("spec");
    let strange = "command=/bin/no\rsuch\nstatus=running\u{2028}x\u{85}y\x0cz";
    fs::write(run.path("spec"), spec.replace("command=/bin/sh", strange)).expect("spec");
    let state = run.begun().ended();
    assert_eq!(state["reason"], "exec_failed");
    assert!(state["message"].starts_with("/bin/no such status=running x y z: No such file"), "{}", state["message"]);
}

#[test]
fn of_many_who_start_a_folder_at_once_one_does() {
    let run = Run::of_shell("printf x >> started; sleep 1000");
    let all: Vec<_> = (0..8).map(|_| run.keeper().spawn().expect("keeper runs")).collect();
    let mut codes: Vec<_> = all.into_iter().map(|mut one| one.wait().expect("ended").code()).collect();
    codes.sort();
    assert_eq!(codes, [vec![Some(0)], vec![Some(75); 7]].concat());
    until(|| run.path("scratch/started").exists(), "it runs");
    run.tell("stop 0");
    run.ended();
    assert_eq!(fs::read(run.path("scratch/started")).expect("marks"), b"x");
}
