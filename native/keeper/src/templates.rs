//! What the roots of runs have in common is made once and handed on: a namespace of mounts in which nobody runs.
//!
//! The first keeper that needs one makes it on its way and gives it to the nursery, which forks later ones with it. The
//! nursery itself looks at no path, so none that does not answer holds it up: a keeper that is handed one compares what
//! it was made of with what is there now, and the nursery drops it as soon as a mount of the machine has changed.

use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, forget};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Of all users, or mounts of processes may not be made where no other such mount is seen.
const WHOLE_MACHINE: [&str; 3] = ["0", "0", "4294967295"];
const STAMP_BYTES: usize = size_of::<u64>();

/// A namespace of mounts, and all that tells what it was made of.
struct Template {
    made_of: Vec<u8>,
    mounts: OwnedFd,
}

/// The nursery's: the last one that was made, as long as it is true.
pub struct Templates {
    top: PathBuf,
    changes: File,
    given: OwnedFd,
    gives: OwnedFd,
    /// How often the mounts of the machine have changed.
    age: u64,
    last: Option<Template>,
}

impl Templates {
    /// For runs of which all that is their own is below the folder that has the folder of all runs. None where a
    /// template would not be allowed, or could not be told from an old one.
    pub fn new(runs: &Path) -> Option<Self> {
        let top = runs.parent().filter(|top| top.is_absolute() && top.parent().is_some())?;
        let users = fs::read_to_string("/proc/self/uid_map").ok()?;
        if !users.split_ascii_whitespace().eq(WHOLE_MACHINE) {
            return None;
        }
        let changes = File::open("/proc/self/mountinfo").ok()?;
        let flags = SocketFlags::CLOEXEC;
        let (given, gives) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        Some(Self { top: top.to_owned(), changes, given, gives, age: 0, last: None })
    }

    /// Ready when there is something to `heed`. That mounts have changed is told once, whoever asks.
    pub fn watched(&self) -> [PollFd<'_>; 2] {
        [PollFd::new(&self.changes, PollFlags::PRI), PollFd::new(&self.given, PollFlags::IN)]
    }

    /// Looks whether anything is ready now. Waits for nobody.
    pub fn look(&mut self) {
        let mut fds = self.watched();
        if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0) {
            let ready = fds.map(|fd| !fd.revents().is_empty());
            self.heed(ready);
        }
    }

    /// Drops what is not true any more, and takes what was given; `ready` is which of `watched` are.
    pub fn heed(&mut self, ready: [bool; 2]) {
        let [has_changed, is_given] = ready;
        if has_changed {
            self.age += 1;
            self.last = None;
        }
        if is_given {
            while let Ok(one) = self.receive() {
                self.last = one.or(self.last.take());
            }
        }
    }

    /// None: it was begun before mounts have changed.
    fn receive(&self) -> rustix::io::Result<Option<Template>> {
        let mut stamp = [0; STAMP_BYTES];
        // Of all that was given, so it is enough for one.
        let mut made_of = vec![0; ioctl_fionread(&self.given)? as usize];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut stamp), IoSliceMut::new(&mut made_of)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.given, &mut parts, &mut beside, flags)?;
        let mounts = beside.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut all) => all.next(),
            _ => None,
        });
        let is_whole = got.bytes > STAMP_BYTES && !got.flags.contains(ReturnFlags::TRUNC);
        if !is_whole || u64::from_ne_bytes(stamp) != self.age {
            return Ok(None);
        }
        made_of.truncate(got.bytes - STAMP_BYTES);
        made_of.shrink_to_fit();
        Ok(mounts.map(|mounts| Template { made_of, mounts }))
    }

    /// For a keeper that was forked just now.
    pub fn hand_on(self) -> Handed {
        Handed { top: self.top, last: self.last, to: Giver { gives: self.gives, age: self.age } }
    }
}

/// What a keeper was forked with.
pub struct Handed {
    /// All that is a run's own is below this one.
    pub top: PathBuf,
    last: Option<Template>,
    to: Giver,
}

impl Handed {
    /// The mounts, where they were made of this.
    pub fn take(self, made_of: &[u8]) -> Result<OwnedFd, Giver> {
        let Self { top, last, to } = self;
        // To free what is the nursery's would be to have a copy of it.
        forget(top);
        match last {
            Some(Template { made_of: of, mounts }) if of == made_of => {
                forget(of);
                Ok(mounts)
            }
            _ => Err(to),
        }
    }
}

/// Who makes mounts for those who come later gives them there.
pub struct Giver {
    gives: OwnedFd,
    age: u64,
}

impl Giver {
    /// Where nobody takes it, it is ours alone.
    pub fn give(&self, made_of: &[u8], mounts: BorrowedFd<'_>) {
        let stamp = self.age.to_ne_bytes();
        let mounts = [mounts];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if beside.push(SendAncillaryMessage::ScmRights(&mounts)) {
            let parts = [IoSlice::new(&stamp), IoSlice::new(made_of)];
            let _ = sendmsg(self.gives.as_fd(), &parts, &mut beside, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}
