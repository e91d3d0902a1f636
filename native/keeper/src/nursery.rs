//! Starts keepers by forking: one small process for as long as a service runs, in place of a program to load for each.
//!
//! It reads folders from its standard input, each ended by NUL, and answers on its standard output in records of three
//! words, each ended by NUL: a status as of `hosting-keeper <folder>`, the folder, and a sentence where there is one.
//! The first answer is `0` for the folder of all runs: it has the lock there. What it forks keeps that lock until it has
//! the one of its run, so who gets it next meets none of them on their way. It ends with its input; keepers go on. What
//! the roots of runs have in common is handed from keeper to keeper (`templates`).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, wait};

use crate::keeper::{self, Caller, Refusal};
use crate::program;
use crate::templates::Templates;
use crate::title::Title;

const LOCK: &str = ".nursery";
/// With it a record is shorter than what a pipe takes as a whole.
const SENTENCE_MAX: usize = 1024;
const PIECE_BYTES: usize = 4 << 10;

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
        nursery.wait()?;
        nursery.take_ends()?;
        if !read_some(&mut requests)? {
            return Ok(());
        }
        while let Some(end) = requests.iter().position(|&byte| byte == 0) {
            let folder = PathBuf::from(OsStr::from_bytes(&requests[..end]));
            requests.drain(..=end);
            if let Some(told) = nursery.fork(&folder)? {
                keep(&folder, nursery, told);
                return Ok(());
            }
        }
    }
}

/// What is forked is a keeper, and has nothing of the nursery's but the lock, for so long.
fn keep(folder: &Path, nursery: Nursery, told: Told) {
    let Nursery { lock, ends, answers, forked, title, templates } = nursery;
    title.set(folder);
    drop((ends, answers));
    // To free what is the nursery's would be to have a copy of it.
    std::mem::forget(forked);
    let handed = templates.map(Templates::hand_on);
    match keeper::prepare(folder, handed)
        .and_then(|prepared| program::leave().map(|()| prepared).map_err(Refusal::Disk))
    {
        Ok(prepared) => {
            drop(lock);
            keeper::go_on(prepared, Caller::Nursery(told));
        }
        Err(refusal) => told.tell(refusal.status(), &refusal.to_string()),
    }
}

struct Nursery {
    lock: File,
    ends: File,
    answers: File,
    forked: HashMap<Pid, PathBuf>,
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
        let answers = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let ends = keeper::signal_descriptor(&[libc::SIGCHLD])?;
        let templates = Templates::new(runs);
        Ok(Self { lock, ends, answers, forked: HashMap::new(), title: Title::find(), templates })
    }

    fn told(&self, folder: &Path) -> io::Result<Told> {
        Ok(Told { answers: self.answers.try_clone()?, folder: folder.to_owned() })
    }

    /// Some in what is forked.
    fn fork(&mut self, folder: &Path) -> io::Result<Option<Told>> {
        let told = self.told(folder)?;
        if let Some(templates) = &mut self.templates {
            templates.look();
        }
        match program::fork(0) {
            Ok(None) => return Ok(Some(told)),
            Ok(Some(pid)) => {
                self.forked.insert(pid, folder.to_owned());
            }
            Err(error) => told.tell(Refusal::Disk(io::Error::other("")).status(), &error.to_string()),
        }
        Ok(None)
    }

    fn wait(&mut self) -> io::Result<()> {
        let stdin = io::stdin();
        let mut fds = vec![PollFd::new(&stdin, PollFlags::IN), PollFd::new(&self.ends, PollFlags::IN)];
        fds.extend(self.templates.iter().flat_map(Templates::watched));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if let (Some(templates), &[_, _, has_changed, is_given]) = (&mut self.templates, &ready[..]) {
            templates.heed([has_changed, is_given]);
        }
        Ok(())
    }

    /// Who was killed before the run began told nothing; of all others this is heard too late to be for anybody.
    fn take_ends(&mut self) -> io::Result<()> {
        // What woke us; who has ended is asked in any case.
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        while (&self.ends).read(&mut record).is_ok() {}
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let folder = self.forked.remove(&pid);
                    if let (Some(folder), true) = (folder, status.signaled()) {
                        let refusal = Refusal::Gone;
                        self.told(&folder)?.tell(refusal.status(), &refusal.to_string());
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return Ok(()),
            }
        }
    }
}

/// False at the end of the input.
fn read_some(requests: &mut Vec<u8>) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut asked = [PollFd::new(&stdin, PollFlags::IN)];
    if poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
        return Ok(true);
    }
    requests.reserve(PIECE_BYTES);
    Ok(rustix::io::read(&stdin, spare_capacity(requests))? > 0)
}
