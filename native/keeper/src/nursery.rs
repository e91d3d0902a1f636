//! Starts keepers by forking: one small process for as long as a service runs, in place of a program to load for each.
//!
//! It reads folders, absolute paths, from its standard input, each ended by NUL, and answers on its standard output
//! in records of three words, each ended by NUL: a status as of `hosting-keeper <folder>`, the folder, and a sentence
//! where there is one. The first answer is `0` for the folder of all runs: it has the lock there. What it forks keeps
//! that lock until it has the one of its run, so who gets it next meets none of them on their way. It ends with its
//! input; keepers go on, but for one that has to be forked otherwise: that run is there to be asked for again. What
//! the roots of runs have in common is handed from keeper to keeper (`templates`).

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, chdir, wait};

use crate::inherited;
use crate::keeper::{self, Caller, Refusal};
use crate::processes;
use crate::templates::Templates;
use crate::title::Title;

const LOCK: &str = ".nursery";
/// With it a record is shorter than what a pipe takes as a whole.
const SENTENCE_MAX: usize = 1024;
const PIECE_BYTES: usize = 4 << 10;
/// Exit status of a keeper that has to be made in the other way: nothing has begun.
const OTHERWISE: i32 = 76;

/// Where it is told how the start of one run went.
pub struct Told {
    answers: File,
    folder: PathBuf,
}

impl Told {
    /// Once. `status` is one of `main`.
    pub fn tell(mut self, status: u8, sentence: &str) {
        let mut record = status.to_string().into_bytes();
        record.push(0);
        record.extend_from_slice(self.folder.as_os_str().as_bytes());
        record.push(0);
        record.extend(sentence.bytes().filter(|&byte| byte != 0).take(SENTENCE_MAX));
        record.push(0);
        // Where nobody reads nobody waits.
        let _ = self.answers.write_all(&record);
    }
}

/// Until the input ends. Returns in what it forks as well, when that is over. `runs` is the folder of all runs.
pub fn serve(runs: &Path) -> io::Result<()> {
    let mut nursery = Nursery::new(runs)?;
    nursery.told(runs)?.tell(0, "");
    let mut requests = Vec::new();
    loop {
        let [is_asked, has_ends] = nursery.wait()?;
        let mut wanted = if has_ends { nursery.take_ends()? } else { Vec::new() };
        let has_more = !is_asked || read_some(&nursery.asked, &mut requests)?;
        while let Some(end) = requests.iter().position(|&byte| byte == 0) {
            wanted.push((PathBuf::from(OsStr::from_bytes(&requests[..end])), None));
            requests.drain(..=end);
        }
        for (folder, wants_to_be_first) in wanted {
            if let Some((folder, is_first)) = nursery.fork(folder, wants_to_be_first)? {
                keep(&folder, nursery, is_first);
                return Ok(());
            }
        }
        if !has_more {
            return Ok(());
        }
    }
}

/// What is forked is a keeper, and has nothing of the nursery's but the lock, for so long.
fn keep(folder: &Path, nursery: Nursery, is_first: bool) {
    inherited::own_pages();
    let Nursery { lock, asked, ends, answers, forked, title, templates, .. } = nursery;
    let told = Told { answers, folder: folder.to_owned() };
    title.set(folder);
    drop((asked, ends));
    // To free what is the nursery's would be to have a copy of it.
    std::mem::forget(forked);
    let handed = templates.map(Templates::hand_on);
    let taken = match keeper::take(folder) {
        Ok(taken) if taken.wants_to_be_first() != is_first => std::process::exit(OTHERWISE),
        other => other,
    };
    match taken.and_then(|taken| taken.prepare(handed)) {
        Ok(prepared) => {
            processes::leave_also();
            drop(lock);
            keeper::go_on(prepared, Caller::Nursery(told));
        }
        Err(refusal) => told.tell(refusal.status(), &refusal.to_string()),
    }
}

struct Forked {
    pid: Pid,
    folder: PathBuf,
    /// Whether it is the first of a namespace of processes, which nobody becomes later. Whether it has to be is in what
    /// it reads, and the nursery opens no file of a run: so it is made as the last one was, and made otherwise if it
    /// says so.
    is_first: bool,
}

struct Nursery {
    lock: File,
    /// What its standard input was.
    asked: File,
    ends: File,
    answers: File,
    /// In no order, one behind the other: each page that is written after a fork is copied.
    forked: Vec<Forked>,
    /// How the last one had to be made, which is how the next one is.
    is_first: bool,
    title: Title,
    /// None where none can be had.
    templates: Option<Templates>,
}

impl Nursery {
    fn new(runs: &Path) -> io::Result<Self> {
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(runs.join(LOCK))?;
        while let Err(error) = flock(&lock, FlockOperation::LockExclusive) {
            if error != Errno::INTR {
                return Err(error.into());
            }
        }
        let asked = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let answers = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        // Once for all that is forked. What goes wrong here is still told.
        processes::hear_nothing(0..2)?;
        chdir("/")?;
        let ends = keeper::signal_descriptor(&[libc::SIGCHLD])?;
        let templates = Templates::new(runs);
        inherited::hand_on_program();
        Ok(Self { asked, lock, ends, answers, forked: Vec::new(), is_first: false, title: Title::find(), templates })
    }

    fn told(&self, folder: &Path) -> io::Result<Told> {
        Ok(Told { answers: self.answers.try_clone()?, folder: folder.to_owned() })
    }

    /// Some in what is forked, with whether it is the first of a namespace; `wanted`: whether it has to be, where that
    /// is known.
    fn fork(&mut self, folder: PathBuf, wanted: Option<bool>) -> io::Result<Option<(PathBuf, bool)>> {
        if let Some(templates) = &mut self.templates {
            templates.look();
        }
        let try_as = |is_first| (is_first, processes::fork(if is_first { libc::CLONE_NEWPID } else { 0 }));
        let (is_first, forked) = match try_as(wanted.unwrap_or(self.is_first)) {
            // Nobody said that it has to.
            (true, Err(_)) if wanted.is_none() => try_as(false),
            other => other,
        };
        match forked {
            Ok(None) => return Ok(Some((folder, is_first))),
            Ok(Some(pid)) => {
                self.is_first = is_first;
                self.forked.push(Forked { pid, folder, is_first });
            }
            Err(error) => {
                self.told(&folder)?.tell(Refusal::Disk(io::Error::other("")).status(), &error.to_string());
            }
        }
        Ok(None)
    }

    /// Whether something was asked, or its end is there; and whether somebody has ended.
    fn wait(&mut self) -> io::Result<[bool; 2]> {
        let mut fds = vec![PollFd::new(&self.asked, PollFlags::IN), PollFd::new(&self.ends, PollFlags::IN)];
        fds.extend(self.templates.iter().flat_map(Templates::watched));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if let (Some(templates), &[_, _, has_changed, is_given]) = (&mut self.templates, &ready[..]) {
            templates.heed([has_changed, is_given]);
        }
        Ok([ready[0], ready[1]])
    }

    /// Who was killed before the run began told nothing, nor did those that are given: they have to be made in the
    /// other way, whether as the first of a namespace is with each. Of all others this is heard too late to be for
    /// anybody.
    fn take_ends(&mut self) -> io::Result<Vec<(PathBuf, Option<bool>)>> {
        let mut otherwise = Vec::new();
        // What woke us; who has ended is asked in any case.
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        while (&self.ends).read(&mut record).is_ok() {}
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let Some(at) = self.forked.iter().position(|forked| forked.pid == pid) else { continue };
                    let forked = self.forked.swap_remove(at);
                    if status.signaled() {
                        let refusal = Refusal::Gone;
                        self.told(&forked.folder)?.tell(refusal.status(), &refusal.to_string());
                    } else if status.exit_status() == Some(OTHERWISE) {
                        otherwise.push((forked.folder, Some(!forked.is_first)));
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return Ok(otherwise),
            }
        }
    }
}

/// False at the end of the input.
fn read_some(asked: &File, requests: &mut Vec<u8>) -> io::Result<bool> {
    requests.reserve(PIECE_BYTES);
    Ok(rustix::io::read(asked, spare_capacity(requests))? > 0)
}
