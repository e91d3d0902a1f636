//! Keeper launcher: starts, replies, and the lock that a launcher hands over.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{CWD, FlockOperation, Mode, flock, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::run_fixture::{KEEPER, Run, available_modes, descendants, is_alive, wait_until};

/// Reply of the launcher: status, folder and message.
pub type Reply = (String, String, String);

pub struct Launcher {
    process: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Launcher {
    /// Starts a launcher without waiting for its first reply.
    fn begin(runs: &Path) -> Self {
        let mut process = Command::new(KEEPER)
            .arg0("hosting-keeper, which forks a keeper for each run")
            .arg("--nursery")
            .arg(runs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a launcher");
        let answers = BufReader::new(process.stdout.take().expect("answers"));
        Self { requests: process.stdin.take(), answers, process }
    }

    pub fn new(runs: &Path) -> Self {
        let mut launcher = Self::begin(runs);
        assert_eq!(launcher.answer(), reply("0", runs, ""));
        launcher
    }

    fn ask(&mut self, folder: &Path) {
        let request = [folder.as_os_str().as_bytes(), &[0]].concat();
        self.requests.as_mut().expect("open").write_all(&request).expect("asked");
    }

    fn answer(&mut self) -> Reply {
        let [status, folder, message] = [(); 3].map(|()| {
            let mut word = Vec::new();
            self.answers.read_until(0, &mut word).expect("an answer");
            assert_eq!(word.pop(), Some(0), "the launcher is gone");
            String::from_utf8(word).expect("text")
        });
        (status, folder, message)
    }

    pub fn start(&mut self, folder: &Path) -> Reply {
        self.ask(folder);
        self.answer()
    }

    /// Waits for the end of the replies, which proves that no keeper has the pipe open.
    fn ends(&mut self) {
        self.requests = None;
        assert!(self.process.wait().expect("ends").success());
        let mut rest = Vec::new();
        self.answers.read_to_end(&mut rest).expect("its end");
        assert_eq!(rest, b"");
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.process.wait();
    }
}

pub fn reply(status: &str, folder: &Path, message: &str) -> Reply {
    (status.to_owned(), folder.display().to_string(), message.to_owned())
}

fn lock_of(runs: &TempDir) -> File {
    OpenOptions::new().write(true).open(runs.path().join(".nursery")).expect("a lock")
}

#[test]
fn launcher_starts_many_runs_that_outlive_it() {
    let runs = tempfile::tempdir().expect("a folder");
    let mut launcher = Launcher::new(runs.path());
    for mode in available_modes().into_iter().filter(|mode| !mode.is_unprivileged) {
        let run = Run::new(mode, "echo up; read never; sleep 1000", &[]);
        assert_eq!(launcher.start(run.folder.path()), reply("0", run.folder.path(), ""), "{mode:?}");
        let refused = launcher.start(run.folder.path());
        assert_eq!((&refused.0[..], refused.2.contains("a folder is one run")), ("75", true), "{mode:?}: {refused:?}");
        run.send_command("stop 0");
        assert_eq!(run.wait_ended()["reason"], "stopped", "{mode:?}");
    }
    let [one, other] = [(); 2].map(|()| Run::of_shell("echo up; sleep 1000; exit 3"));
    launcher.ask(one.folder.path());
    launcher.ask(other.folder.path());
    let mut answers = [launcher.answer(), launcher.answer()];
    answers.sort();
    let mut expected = [&one, &other].map(|run| reply("0", run.folder.path(), ""));
    expected.sort();
    assert_eq!(answers, expected);
    launcher.ends();
    for run in [&one, &other] {
        run.wait_for_line("o up");
        let keeper = run.number("keeper_pid");
        let shown = fs::read(format!("/proc/{keeper}/cmdline")).expect("a keeper");
        let words: Vec<&[u8]> = shown.split(|&byte| byte == 0).filter(|word| !word.is_empty()).collect();
        assert_eq!(words, [b"hosting-keeper".as_slice(), run.folder.path().as_os_str().as_bytes()]);
        run.send_command("stop 0");
        assert_eq!(run.wait_ended()["exit_code"], "137");
        wait_until(|| !is_alive(keeper), "the keeper goes");
    }
}

#[test]
fn failed_start_is_reported_and_can_be_retried() {
    let runs = tempfile::tempdir().expect("a folder");
    let mut launcher = Launcher::new(runs.path());
    let nothing = runs.path().join("nothing");
    assert_eq!(launcher.start(&nothing), reply("74", &nothing, "folder: No such file or directory (os error 2)"));
    let run = Run::of_shell("exit 0");
    let good = fs::read(run.path("spec")).expect("spec");
    fs::write(run.path("spec"), [good.clone(), b"bogus=1\0".to_vec()].concat()).expect("spec");
    let refused = launcher.start(run.folder.path());
    assert_eq!((&refused.0[..], refused.2.contains("unknown key")), ("78", true), "{refused:?}");
    fs::write(run.path("spec"), good).expect("spec");
    assert_eq!(launcher.start(run.folder.path()).0, "0");
    assert_eq!(run.wait_ended()["exit_code"], "0");
}

#[test]
fn killed_keeper_is_reported() {
    let runs = tempfile::tempdir().expect("a folder");
    let mut launcher = Launcher::new(runs.path());
    // The program waits for a reader of this FIFO before it joins the control group.
    let group = runs.path().join("group");
    mkfifoat(CWD, &group, Mode::RUSR | Mode::WUSR).expect("a pipe");
    let run = Run::new(crate::run_fixture::NONE, "exit 0", &[&format!("cgroup={}", group.display())]);
    launcher.ask(run.folder.path());
    wait_until(|| run.state().contains_key("keeper_pid"), "the record of its start");
    let keeper = run.number("keeper_pid");
    let mut children = Vec::new();
    let has_child = || {
        children = descendants(keeper);
        !children.is_empty()
    };
    wait_until(has_child, "the process that is to become the program");
    kill_process(Pid::from_raw(keeper).expect("a pid"), Signal::KILL).expect("killed");
    assert_eq!((&launcher.answer().0[..], launcher.start(run.folder.path()).0), ("70", "75".to_owned()));
    // Releases the process that was to become the program, if it has come to the FIFO.
    let _reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&group).expect("opened");
    wait_until(|| !children.iter().any(|&child| is_alive(child)), "the end of this process");
}

/// File with a lease, which blocks every open of the file until the value is dropped.
struct LeasedFile(File);

impl LeasedFile {
    fn new(path: &Path) -> Self {
        let file = File::create(path).expect("a file");
        // SAFETY: plain calls. The kernel announces a waiting process by SIGIO, which would end the tests.
        let is_ours = unsafe {
            libc::signal(libc::SIGIO, libc::SIG_IGN);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        assert!(is_ours, "a lease: {}", std::io::Error::last_os_error());
        Self(file)
    }
}

impl Drop for LeasedFile {
    fn drop(&mut self) {
        // SAFETY: a plain call; the file is open.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

#[test]
fn next_launcher_waits_for_pending_starts_of_the_last() {
    let runs = tempfile::tempdir().expect("a folder");
    let mut last = Launcher::new(runs.path());
    let run = Run::of_shell("exit 0");
    let leased = LeasedFile::new(&run.path("state"));
    last.ask(run.folder.path());
    last.requests = None;
    assert!(last.process.wait().expect("ends").success());
    let mut next = Launcher::begin(runs.path());
    assert!(flock(lock_of(&runs), FlockOperation::NonBlockingLockExclusive).is_err(), "a keeper is about to start");
    drop(leased);
    assert_eq!(next.answer(), reply("0", runs.path(), ""));
    assert_eq!(next.start(run.folder.path()).0, "75", "it has its lock by then");
    assert_eq!(run.wait_ended()["exit_code"], "0");
}
