//! What the roots of runs have in common is made once by who is forked first, and is true as long as it is used.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::folder::{Run, Way, needs_root};
use crate::nursery::{Nursery, told};

const USER: Way = Way { isolation: "user", is_ordinary: false };

/// A machine's folders: those of runs are below `top`, what they have in common is beside it.
struct Machine {
    base: TempDir,
    nursery: Nursery,
}

impl Machine {
    fn new() -> Option<Self> {
        if !needs_root("a root that is handed on") {
            return None;
        }
        let base = tempfile::tempdir().expect("a folder");
        open_to_all(base.path());
        for name in ["top/runs", "tools", "others"] {
            fs::create_dir_all(base.path().join(name)).expect("a folder");
        }
        open_to_all(&base.path().join("top"));
        fs::write(base.path().join("tools/version"), "1\n").expect("a tool");
        let nursery = Nursery::new(&base.path().join("top/runs"));
        Some(Self { base, nursery })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// One that sees the tools.
    fn begin(&mut self, script: &str, more: &[&str]) -> Run {
        let folder = TempDir::new_in(self.path("top/runs")).expect("a folder");
        let tools = format!("read={}", self.path("tools").display());
        let run = Run::of(USER, folder, &["/bin/sh", "-c", script], &[&[tools.as_str()], more].concat());
        assert_eq!(self.nursery.start(run.folder.path()), told("0", run.folder.path(), ""));
        run
    }

    /// Which root it had, and which tools.
    fn looks(&mut self) -> (String, String) {
        let script = format!("stat -c %d /; cat {}/version", self.path("tools").display());
        let run = self.begin(&script, &[]);
        let state = run.ended();
        let [root, version] = &run.said()[..] else { panic!("{state:?}: {:?}", run.log()) };
        (root.clone(), version.clone())
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
}

#[test]
fn a_root_is_made_once_and_made_anew_when_something_else_is_there() {
    let Some(mut machine) = Machine::new() else { return };
    let (first, version) = machine.looks();
    assert_eq!(version, "1");
    assert_eq!(machine.looks(), (first.clone(), "1".to_owned()), "it is handed on");

    let tools = machine.path("tools");
    fs::write(tools.join("version"), "2\n").expect("changed");
    assert_eq!(machine.looks(), (first.clone(), "2".to_owned()), "what is in a folder is seen as it is");

    fs::rename(&tools, machine.path("old")).expect("moved away");
    fs::create_dir(&tools).expect("made anew");
    fs::write(tools.join("version"), "3\n").expect("written");
    let (second, version) = machine.looks();
    assert_eq!(version, "3");
    assert_ne!(second, first);

    mount("tmpfs", &tools, "tmpfs", MountFlags::empty(), Some(c"mode=755,size=1m")).expect("mounted");
    fs::write(tools.join("version"), "4\n").expect("written");
    assert_eq!(machine.looks().1, "4", "a disk that is mounted is seen");
    assert_eq!(machine.looks().1, "4");
    unmount(&tools, UnmountFlags::empty()).expect("a root that nobody uses holds no disk");
    assert_eq!(machine.looks().1, "3");
}

#[test]
fn a_disk_that_comes_or_goes_below_what_is_shared_is_seen_by_the_next_run() {
    let Some(mut machine) = Machine::new() else { return };
    let below = machine.path("tools/below");
    fs::create_dir(&below).expect("a folder");
    fs::write(below.join("version"), "old\n").expect("written");
    let script = format!("cat {}/version", below.display());
    for _ in 0..2 {
        let before = machine.begin(&script, &[]);
        before.ended();
        assert_eq!(before.said(), ["old"]);
        mount("tmpfs", &below, "tmpfs", MountFlags::empty(), Some(c"mode=755,size=1m")).expect("mounted");
        fs::write(below.join("version"), "new\n").expect("written");
        let between = machine.begin(&script, &[]);
        between.ended();
        unmount(&below, UnmountFlags::DETACH).expect("unmounted");
        assert_eq!(between.said(), ["new"]);
    }
    let after = machine.begin(&script, &[]);
    after.ended();
    assert_eq!(after.said(), ["old"]);
}

#[test]
fn a_link_or_a_file_that_is_replaced_is_seen_by_the_next_run() {
    let Some(mut machine) = Machine::new() else { return };
    let (link, file) = (machine.path("link"), machine.path("file"));
    let more = [format!("read={}", link.display()), format!("read={}", file.display())];
    let more = more.each_ref().map(String::as_str);
    let script = format!("readlink {}; cat {}", link.display(), file.display());
    for round in ["one", "other", "one"] {
        for path in [&link, &file] {
            let _ = fs::remove_file(path);
        }
        std::os::unix::fs::symlink(round, &link).expect("a link");
        fs::write(&file, round).expect("a file");
        for _ in 0..2 {
            let run = machine.begin(&script, &more);
            run.ended();
            assert_eq!(run.said(), [round, round], "{:?}", run.log());
        }
    }
}

#[test]
fn a_root_that_is_handed_on_has_nothing_of_another_run() {
    let Some(mut machine) = Machine::new() else { return };
    let build = machine.path("top/build");
    fs::create_dir(&build).expect("a folder");
    fs::write(build.join("asset"), "asset\n").expect("a file");
    let more = [format!("read={}", build.display())];
    let more = more.each_ref().map(String::as_str);
    let top = machine.path("top").display().to_string();
    let looks = format!(
        "for place in / /proc /dev /usr {top} {top}/build {top}/runs \"$PWD/..\"; do \
           touch $place/new 2> /dev/null && echo wrote into $place; done; touch mine && ls -A; \
         ls -A {top} {top}/runs; cat {top}/build/asset; ls -A /; cat /proc/self/mountinfo; echo up; sleep 1000"
    );
    let runs = [(); 3].map(|()| machine.begin(&looks, &more));
    for (at, run) in runs.iter().enumerate() {
        run.says("o up");
        let said = run.said();
        let own = run.folder.path().file_name().expect("a name").to_string_lossy().into_owned();
        let runs_folder = format!("{top}/runs:");
        let place = format!("{top}:");
        let seen = ["mine", place.as_str(), "build", "runs", "", runs_folder.as_str(), own.as_str(), "asset"];
        assert_eq!(said[..seen.len()], seen, "{said:?}");
        for other in runs.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other) {
            let name = other.folder.path().file_name().expect("a name").to_string_lossy().into_owned();
            assert!(!said.iter().any(|line| line.contains(&name)), "{name}: {said:?}");
        }
    }
    for run in &runs {
        run.tell("stop 0");
        run.ended();
    }
}

#[test]
fn what_was_handed_on_is_kept_by_no_keeper_and_the_nursery_has_one() {
    let Some(mut machine) = Machine::new() else { return };
    let opened = |pid: i32| -> Vec<String> {
        let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").flatten();
        all.filter_map(|one| fs::read_link(one.path()).ok()).map(|link| link.display().to_string()).collect()
    };
    let count = |pid: i32| opened(pid).iter().filter(|link| link.starts_with("mnt:")).count();
    let runs = [(); 5].map(|()| machine.begin("echo up; sleep 1000", &[]));
    for run in &runs {
        run.says("o up");
        let links = opened(run.number("keeper_pid"));
        assert!(!links.iter().any(|link| link.starts_with("mnt:") || link.starts_with("socket:")), "{links:?}");
    }
    machine.looks();
    assert_eq!(count(machine.nursery.pid()), 1);
    for run in &runs {
        run.tell("stop 0");
        run.ended();
    }
}

#[test]
fn who_writes_elsewhere_has_a_root_of_its_own_beside_those_that_share_one() {
    let Some(mut machine) = Machine::new() else { return };
    let (root, _) = machine.looks();
    let others = machine.path("others");
    fs::set_permissions(&others, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("mode");
    let script = format!("stat -c %d /; echo told > {}/told", others.display());
    let run = machine.begin(&script, &[&format!("write={}", others.display())]);
    assert_eq!(run.ended()["exit_code"], "0", "{:?}", run.log());
    assert_ne!(run.said(), [root.as_str()]);
    assert_eq!(fs::read_to_string(others.join("told")).expect("told"), "told\n");
    assert_eq!(machine.looks().0, root);
}
