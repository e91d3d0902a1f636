//! Starts: a folder is one run, and failures are reported.

use std::fs;

use rustix::fs::{FlockOperation, flock};

use crate::run_fixture::{Run, available_modes, descendants, is_alive, wait_until};

#[test]
fn second_start_of_a_folder_is_refused() {
    let run = Run::of_shell("echo up; sleep 1000").started();
    run.wait_for_line("o up");
    let pid = run.number("pid");
    assert_eq!(run.keep().status.code(), Some(75));
    assert!(is_alive(pid));
    run.send_command("stop 0");
    let state = run.wait_ended();
    wait_until(|| !is_alive(state["keeper_pid"].parse().expect("pid")), "the keeper goes");
    assert_eq!(run.keep().status.code(), Some(75));
    assert_eq!(run.state(), state);
}

#[test]
fn invalid_spec_starts_nothing_and_can_be_replaced() {
    let run = Run::of_shell("exit 0");
    let good = fs::read(run.path("spec")).expect("spec");
    fs::write(run.path("spec"), [good.clone(), b"bogus=1\0".to_vec()].concat()).expect("spec");
    let refused = run.keep();
    assert_eq!(refused.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unknown key"));
    assert!(run.state().is_empty(), "nothing is recorded");
    fs::write(run.path("spec"), good).expect("spec");
    assert_eq!(run.started().wait_ended()["exit_code"], "0");
}

#[test]
fn missing_program_is_reported_as_exec_failed() {
    for mode in available_modes() {
        let run = Run::new(mode, "", &[]);
        let spec =
            fs::read_to_string(run.path("spec")).expect("spec").replace("command=/bin/sh", "command=/bin/nothing");
        fs::write(run.path("spec"), spec).expect("spec");
        let state = run.started().wait_ended();
        assert_eq!(state["reason"], "exec_failed", "{mode:?}");
        assert!(state["message"].contains("/bin/nothing: No such file"), "{mode:?}: {}", state["message"]);
        assert!(!state.contains_key("exit_code"), "{mode:?}");
    }
}

#[test]
fn program_ends_when_its_keeper_is_killed() {
    for mode in available_modes() {
        let script = if mode.has_pid_namespace() {
            "(setsid sleep 1000 &); echo up; sleep 1000"
        } else {
            "echo up; exec sleep 1000"
        };
        let run = Run::new(mode, script, &[]).started();
        run.wait_for_line("o up");
        let below = descendants(run.number("keeper_pid"));
        let (keeper, program) = (run.number("keeper_pid"), run.number("pid"));
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(keeper).expect("pid"),
            rustix::process::Signal::KILL,
        )
        .expect("killed");
        wait_until(|| !is_alive(program) && !below.iter().any(|&pid| is_alive(pid)), "the program goes with it");
        assert_eq!(run.state()["status"], "running", "{mode:?}: the end is not recorded");
        assert_eq!(run.keep().status.code(), Some(75), "{mode:?}");
    }
}

#[test]
fn lock_test_by_another_process_does_not_prevent_the_start() {
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
    wait_until(|| has_it_open() || keeper.try_wait().expect("ours").is_some(), "the keeper tries");
    drop(look);
    assert_eq!(keeper.wait().expect("ended").code(), Some(0));
    assert_eq!(run.wait_ended()["exit_code"], "0");
}

#[test]
fn message_with_control_characters_stays_one_line() {
    let run = Run::of_shell("");
    let spec = fs::read_to_string(run.path("spec")).expect("spec");
    let strange = "command=/bin/no\rsuch\nstatus=running\u{2028}x\u{85}y\x0cz";
    fs::write(run.path("spec"), spec.replace("command=/bin/sh", strange)).expect("spec");
    let state = run.started().wait_ended();
    assert_eq!(state["reason"], "exec_failed");
    assert!(state["message"].starts_with("/bin/no such status=running x y z: No such file"), "{}", state["message"]);
}

#[test]
fn one_of_many_concurrent_starts_wins() {
    let run = Run::of_shell("printf x >> started; sleep 1000");
    let all: Vec<_> = (0..8).map(|_| run.keeper().spawn().expect("keeper runs")).collect();
    let mut codes: Vec<_> = all.into_iter().map(|mut one| one.wait().expect("ended").code()).collect();
    codes.sort();
    assert_eq!(codes, [vec![Some(0)], vec![Some(75); 7]].concat());
    wait_until(|| run.path("scratch/started").exists(), "it runs");
    run.send_command("stop 0");
    run.wait_ended();
    assert_eq!(fs::read(run.path("scratch/started")).expect("marks"), b"x");
}
