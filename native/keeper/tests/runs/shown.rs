//! What is root's alone among what every program is shown, where the keeper is root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::folder::{NONE, Run, USER, Way, apart, needs_root, until};

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
}

fn ways_of_root() -> impl Iterator<Item = Way> {
    apart().into_iter().filter(|way| !way.is_ordinary)
}

#[test]
fn what_only_root_may_read_stays_so_among_what_is_shown() {
    if !needs_root("what is root's alone") {
        return;
    }
    let shown = tempfile::tempdir().expect("a folder");
    mode(shown.path(), 0o755);
    for (name, of_file) in [("key", 0o600), ("certificate", 0o644)] {
        fs::write(shown.path().join(name), format!("{name}\n")).expect("a file");
        mode(&shown.path().join(name), of_file);
    }
    let place = shown.path().display();
    let script = format!("cat {place}/key; cat {place}/certificate");
    for way in ways_of_root() {
        let run = Run::new(way, &script, &[&format!("read={place}")]).begun();
        run.ended();
        assert_eq!(run.said(), ["certificate"], "{way:?}");
    }
}

#[test]
fn roots_programs_are_users_of_their_own_outside_and_inside() {
    if !needs_root("users of runs") {
        return;
    }
    let script = "echo made > mine; while read name rest; do case $name in Uid:|Gid:|Groups:) echo $name $rest; \
                  esac; done < /proc/self/status; exec sleep 1000";
    for way in ways_of_root() {
        let run = Run::new(way, script, &[]).begun();
        until(|| run.said().len() == 3, "it says who it is");
        let inside = if way.isolation == "namespace" { 65_534 } else { USER };
        let [uid, gid] = ["Uid:", "Gid:"].map(|name| format!("{name} {inside} {inside} {inside} {inside}"));
        assert_eq!(run.said(), [uid.as_str(), gid.as_str(), "Groups:"], "{way:?}");
        let mine = fs::metadata(run.path("scratch/mine")).expect("made");
        assert_eq!((mine.uid(), mine.gid()), (USER, USER), "{way:?}");
        let program = fs::metadata(format!("/proc/{}/stat", run.number("pid"))).expect("runs");
        assert!(program.uid() == USER || way.isolation == "namespace", "{way:?}");
    }
}

#[test]
fn what_is_above_a_run_may_be_closed_to_its_program_where_it_has_a_root_of_its_own() {
    if !needs_root("folders of root") {
        return;
    }
    for way in ways_of_root().filter(|way| way.isolation != "landlock") {
        let above = tempfile::tempdir().expect("a folder, closed to others");
        let (folder, build) = (above.path().join("run"), above.path().join("build"));
        fs::create_dir(&folder).expect("a folder");
        fs::create_dir(&build).expect("a build");
        fs::write(build.join("asset"), "asset\n").expect("an asset");
        let inner = tempfile::tempdir_in(&folder).expect("a folder");
        let script = format!("cat {}/asset; echo x > mine && cat mine", build.display());
        let run = Run::of(way, inner, &["/bin/sh", "-c", &script], &[&format!("read={}", build.display())]).begun();
        let state = run.ended();
        assert_eq!(run.said(), ["asset", "x"], "{way:?}: {state:?}");
    }
}

#[test]
fn who_would_be_root_behind_a_namespace_is_not_run() {
    if !needs_root("root's programs") {
        return;
    }
    let way = Way { isolation: "namespace", ..NONE };
    let state = Run::new(way, "echo up", &["uid=0", "gid=0"]).begun().ended();
    assert_eq!(state["reason"], "exec_failed");
    assert!(state["message"].contains("no user of its own"), "{}", state["message"]);
}
