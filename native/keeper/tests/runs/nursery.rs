//! Keepers that are forked are as those that are called: one nursery, many runs.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{CWD, FlockOperation, Mode, flock, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::folder::{KEEPER, Run, is_alive, possible, until};

/// What it told: a status, of which folder, and why.
pub type Told = (String, String, String);

pub struct Nursery {
    process: Child,
    asked: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Nursery {
    /// One that may not be ready yet.
    fn begin(runs: &Path) -> Self {
        let mut process = Command::new(KEEPER)
            .arg0("hosting-keeper, which forks a keeper for each run")
            .arg("--nursery")
            .arg(runs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a nursery");
        let answers = BufReader::new(process.stdout.take().expect("answers"));
        Self { asked: process.stdin.take(), answers, process }
    }

    pub fn new(runs: &Path) -> Self {
        let mut nursery = Self::begin(runs);
        assert_eq!(nursery.answer(), told("0", runs, ""));
        nursery
    }

    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    fn ask(&mut self, folder: &Path) {
        let request = [folder.as_os_str().as_bytes(), &[0]].concat();
        self.asked.as_mut().expect("open").write_all(&request).expect("asked");
    }

    fn answer(&mut self) -> Told {
        let [status, folder, why] = [(); 3].map(|()| {
            let mut word = Vec::new();
            self.answers.read_until(0, &mut word).expect("an answer");
            assert_eq!(word.pop(), Some(0), "the nursery is gone");
            String::from_utf8(word).expect("text")
        });
        (status, folder, why)
    }

    pub fn start(&mut self, folder: &Path) -> Told {
        self.ask(folder);
        self.answer()
    }

    /// Whoever reads what it tells hears that it is gone: no keeper has that pipe.
    fn ends(&mut self) {
        self.asked = None;
        assert!(self.process.wait().expect("ends").success());
        let mut rest = Vec::new();
        self.answers.read_to_end(&mut rest).expect("its end");
        assert_eq!(rest, b"");
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        self.asked = None;
        let _ = self.process.wait();
    }
}

pub fn told(status: &str, folder: &Path, why: &str) -> Told {
    (status.to_owned(), folder.display().to_string(), why.to_owned())
}

fn lock_of(runs: &TempDir) -> File {
    OpenOptions::new().write(true).open(runs.path().join(".nursery")).expect("a lock")
}

#[test]
fn many_are_started_by_one_and_go_on_without_it() {
    let runs = tempfile::tempdir().expect("a folder");
    let mut nursery = Nursery::new(runs.path());
    for way in possible().into_iter().filter(|way| !way.is_ordinary) {
        let run = Run::new(way, "echo up; read never; sleep 1000", &[]);
        assert_eq!(nursery.start(run.folder.path()), told("0", run.folder.path(), ""), "{way:?}");
        let refused = nursery.start(run.folder.path());
        assert_eq!((&refused.0[..], refused.2.contains("a folder is one run")), ("75", true), "{way:?}: {refused:?}");
        run.tell("stop 0");
        assert_eq!(run.ended()["reason"], "stopped", "{way:?}");
    }
    let [one, other] = [(); 2].map(|()| Run::of_shell("echo up; sleep 1000; exit 3"));
    nursery.ask(one.folder.path());
    nursery.ask(other.folder.path());
    let mut answers = [nursery.answer(), nursery.answer()];
    answers.sort();
    let mut expected = [&one, &other].map(|run| told("0", run.folder.path(), ""));
    expected.sort();
    assert_eq!(answers, expected);
    nursery.ends();
    for run in [&one, &other] {
        run.says("o up");
        let keeper = run.number("keeper_pid");
        let shown = fs::read(format!("/proc/{keeper}/cmdline")).expect("a keeper");
        let words: Vec<&[u8]> = shown.split(|&byte| byte == 0).filter(|word| !word.is_empty()).collect();
        assert_eq!(words, [b"hosting-keeper".as_slice(), run.folder.path().as_os_str().as_bytes()]);
        run.tell("stop 0");
        assert_eq!(run.ended()["exit_code"], "137");
        until(|| !is_alive(keeper), "the keeper goes");
    }
}

#[test]
fn what_cannot_begin_says_why_and_the_next_one_begins() {
    let runs = tempfile::tempdir().expect("a folder");
    let mut nursery = Nursery::new(runs.path());
    let nothing = runs.path().join("nothing");
    assert_eq!(nursery.start(&nothing), told("74", &nothing, "folder: No such file or directory (os error 2)"));
    let run = Run::of_shell("exit 0");
    let good = fs::read(run.path("spec")).expect("spec");
    fs::write(run.path("spec"), [good.clone(), b"bogus=1\0".to_vec()].concat()).expect("spec");
    let refused = nursery.start(run.folder.path());
    assert_eq!((&refused.0[..], refused.2.contains("unknown key")), ("78", true), "{refused:?}");
    fs::write(run.path("spec"), good).expect("spec");
    assert_eq!(nursery.start(run.folder.path()).0, "0");
    assert_eq!(run.ended()["exit_code"], "0");
}

#[test]
fn a_keeper_that_is_killed_on_its_way_is_told_of() {
    let runs = tempfile::tempdir().expect("a folder");
    let mut nursery = Nursery::new(runs.path());
    // Its program waits to join what nobody has.
    let group = runs.path().join("group");
    mkfifoat(CWD, &group, Mode::RUSR | Mode::WUSR).expect("a pipe");
    let run = Run::new(crate::folder::NONE, "exit 0", &[&format!("cgroup={}", group.display())]);
    nursery.ask(run.folder.path());
    until(|| run.state().contains_key("keeper_pid"), "the record of its start");
    let keeper = Pid::from_raw(run.number("keeper_pid")).expect("a pid");
    kill_process(keeper, Signal::KILL).expect("killed");
    assert_eq!((&nursery.answer().0[..], nursery.start(run.folder.path()).0), ("70", "75".to_owned()));
    // What was forked for the program finds out as soon as it goes on.
    drop(OpenOptions::new().read(true).open(&group).expect("opened by both"));
}

/// Whoever opens the file waits until this is gone.
struct Leased(File);

impl Leased {
    fn new(path: &Path) -> Self {
        let file = File::create(path).expect("a file");
        // SAFETY: plain calls. That somebody waits is told by a signal, which would end the tests.
        let is_ours = unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        assert!(is_ours, "a lease: {}", std::io::Error::last_os_error());
        Self(file)
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        // SAFETY: a plain call; the file is open.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

#[test]
fn the_next_nursery_serves_when_nobody_of_the_last_is_on_the_way_to_a_run() {
    let runs = tempfile::tempdir().expect("a folder");
    let mut last = Nursery::new(runs.path());
    let run = Run::of_shell("exit 0");
    let leased = Leased::new(&run.path("state"));
    last.ask(run.folder.path());
    last.asked = None;
    assert!(last.process.wait().expect("ends").success());
    let mut next = Nursery::begin(runs.path());
    assert!(flock(lock_of(&runs), FlockOperation::NonBlockingLockExclusive).is_err(), "somebody is on the way");
    drop(leased);
    assert_eq!(next.answer(), told("0", runs.path(), ""));
    assert_eq!(next.start(run.folder.path()).0, "75", "it has its lock by then");
    assert_eq!(run.ended()["exit_code"], "0");
}
