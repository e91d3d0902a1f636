//! Keeps the program from all that is not its own. Runs in the child, between fork and exec.
//!
//! Three ways, one promise: of the file system it sees what `read` and `write` of the spec list, and it can neither
//! look into, signal nor trace a process that is not its own.
//!
//! - `User`: a root that has only what is listed, process ids of its own, then another user. Needs root.
//! - `Namespace`: the same in a user namespace, where the program is nobody. Outside of it it is the keeper's user, or
//!   another one where the keeper is root: what root alone may read is shown among the machine's files.
//! - `Landlock`: the root stays, what is not listed cannot be opened; where the keeper is root, as another user. What
//!   Landlock has no rule for is refused call by call (`calls`). It is the weakest: names of files and what is told
//!   of them can be seen, and where the keeper is no root, modes, owners and times of files that have its user are the
//!   program's to change, wherever they are, and so are the weights of processes. Before Linux 6.12 it may signal
//!   them, too; whoever chooses a way has to know that. So it is for machines where the others cannot be had.
//!
//! And one that keeps nobody apart but makes an end of all that was started: `Processes`, for a program that makes
//! containers. It sees the whole file system, may mount, and is root of its namespaces.

mod calls;
mod root;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, lchown};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, Scope,
};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Gid, Pid, Uid, getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_gid, set_thread_groups,
    set_thread_uid,
};

use crate::numbers;
use crate::spec::{Isolation, Spec};
use crate::templates::Handed;
use root::Root;

const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Under Landlock the whole of `/proc` would show others' environments and memory. Children of the program have not
/// even their own there.
const HARMLESS: [&str; 8] = [
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/version",
    "/proc/sys/kernel",
];

/// What went wrong, and where.
#[derive(Debug)]
pub struct Failure(pub String);

/// Prepared before the fork: whatever allocates or may block is done by then where it can be.
pub struct Cage {
    isolation: Isolation,
    /// Where it is not the machine's.
    root: Option<Root>,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    uid: u32,
    gid: u32,
    outside: (u32, u32),
}

impl Cage {
    /// `folder` is the run's own. The root is made over it: any folder would do that is there,
    /// because nobody else sees it.
    pub fn new(spec: &Spec, folder: &Path, handed: Option<Handed>) -> io::Result<Self> {
        let root = |handed| Some(Root::new(&spec.read, &spec.write, folder.to_owned(), handed));
        let cage = Self {
            isolation: spec.isolation,
            root: match spec.isolation {
                Isolation::User => root(handed),
                Isolation::Namespace => {
                    let place = PathBuf::from(ANYBODYS);
                    Some(Root::new(&spec.read, &spec.write, place, None))
                }
                Isolation::None | Isolation::Landlock | Isolation::Processes => None,
            },
            read: spec.read.clone(),
            write: spec.write.clone(),
            uid: spec.uid,
            gid: spec.gid,
            outside: (geteuid().as_raw(), getegid().as_raw()),
        };
        cage.give_away(folder)?;
        Ok(cage)
    }

    /// Whom the program is, where that is somebody else than the keeper.
    pub fn owner(&self) -> Option<(u32, u32)> {
        let is_other = match self.isolation {
            Isolation::None | Isolation::Processes => false,
            Isolation::User => true,
            Isolation::Namespace | Isolation::Landlock => self.outside.0 == 0 && self.uid != 0,
        };
        is_other.then_some((self.uid, self.gid))
    }

    /// Whether it cannot go in until `map_user` was called: nobody maps another user than himself.
    pub fn is_mapped(&self) -> bool {
        self.isolation == Isolation::Namespace && self.owner().is_some()
    }

    /// Says whom nobody is, in the user namespace of that process. For the keeper.
    pub fn map_user(&self, process: Pid) -> Result<(), Failure> {
        for (map, outside) in [("uid_map", self.uid), ("gid_map", self.gid)] {
            put(&format!("/proc/{}/{map}", process.as_raw_nonzero()), &format!("{NOBODY} {outside} 1"))?;
        }
        Ok(())
    }

    /// Whether processes are counted for the program alone, so that it can have a limit of its own.
    pub fn is_counted_alone(&self) -> bool {
        let has_namespace = match self.isolation {
            Isolation::Namespace => true,
            Isolation::Processes => self.outside.0 != 0,
            Isolation::None | Isolation::User | Isolation::Landlock => false,
        };
        self.owner().is_some() || has_namespace && numbers::are_counted_by_namespace()
    }

    /// Whether its process needs mounts of its own from its beginning.
    pub fn begins_with_mounts(&self) -> bool {
        match &self.root {
            Some(root) => !root.is_handed_on(),
            None => self.isolation.has_own_processes(),
        }
    }

    /// What the program may write and is the run's own becomes the program's. What others have too stays theirs.
    fn give_away(&self, folder: &Path) -> io::Result<()> {
        let Some((uid, gid)) = self.owner() else { return Ok(()) };
        for path in &self.write {
            // What is in the folder itself, and no link, is where it says.
            let is_plain = path.parent() == Some(folder) && path.file_name().is_some();
            let is_plain = is_plain && fs::symlink_metadata(path).is_ok_and(|found| !found.is_symlink());
            if is_plain {
                lchown(path, Some(uid), Some(gid))?;
                continue;
            }
            let (Ok(path), folder) = (fs::canonicalize(path), fs::canonicalize(folder)?) else { continue };
            if path.starts_with(&folder) && path != folder {
                lchown(&path, Some(uid), Some(gid))?;
            }
        }
        Ok(())
    }

    /// Goes in. There is no way back.
    pub fn enter(&self) -> Result<(), Failure> {
        match self.isolation {
            Isolation::None => {}
            Isolation::User => {
                self.enter_root(|| Ok(()))?;
                become_user(self.uid, self.gid)?;
            }
            // One that finds itself root would try what it cannot do.
            Isolation::Namespace => self.enter_root(|| self.become_nobody())?,
            Isolation::Landlock => {
                self.restrict()?;
                self.be_powerless()?;
            }
            Isolation::Processes => self.own_processes()?,
        }
        if self.isolation != Isolation::None {
            forget_keys();
        }
        if self.isolation.has_own_processes() {
            leave_abstract_sockets()?;
        }
        set_no_new_privs(true).map_err(|error| failure("no_new_privs", error))?;
        if self.isolation == Isolation::Landlock {
            calls::refuse().map_err(|error| failure("system calls", error))?;
        }
        Ok(())
    }

    /// `found`: what is shown was found.
    fn enter_root(&self, found: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let Some(root) = &self.root else { return Ok(()) };
        let pieces = root.find()?;
        found()?;
        root.enter(pieces)
    }

    fn become_nobody(&self) -> Result<(), Failure> {
        match self.outside.0 {
            0 if self.uid == 0 => Err(Failure("isolation: root's program has no user of its own".to_owned())),
            0 => become_user(NOBODY, NOBODY),
            _ => be(NOBODY, self.outside),
        }
    }

    fn own_processes(&self) -> Result<(), Failure> {
        if self.outside.0 != 0 {
            be(0, self.outside)?;
        }
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
            .map_err(|error| failure("making mounts private", error))?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("proc", "/proc", "proc", safe, Some(c"")).map_err(|error| failure("/proc", error))
    }

    /// Root would not be kept by Landlock from what is no file: modules, devices, time.
    fn be_powerless(&self) -> Result<(), Failure> {
        if self.outside.0 != 0 {
            return Ok(());
        }
        for capability in 0..64 {
            // SAFETY: a plain call; it fails behind the last one that the kernel knows.
            if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } < 0 {
                break;
            }
        }
        if let Some((uid, gid)) = self.owner() {
            become_user(uid, gid)?;
        }
        drop_capabilities().map_err(|error| failure("capabilities", error))
    }

    fn restrict(&self) -> Result<(), Failure> {
        // What this kernel cannot promise is an error, but for the scopes, which came last.
        let abi = ABI::V5;
        let told = |error: &dyn std::fmt::Display| Failure(format!("landlock: {error}"));
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V3))
            .map_err(|error| told(&error))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))
            .map_err(|error| told(&error))?
            .scope(Scope::Signal | Scope::AbstractUnixSocket)
            .map_err(|error| told(&error))?
            .create()
            .map_err(|error| told(&error))?;
        let devices = DEVICES.iter().map(|name| Path::new("/dev").join(name));
        let reads = self.read.iter().cloned().chain(HARMLESS.map(PathBuf::from));
        let listed = reads
            .map(|path| (path, AccessFs::from_read(abi)))
            .chain(self.write.iter().cloned().map(|path| (path, AccessFs::from_all(abi))))
            .chain(devices.map(|path| (path, AccessFs::ReadFile | AccessFs::WriteFile)));
        for (path, access) in listed {
            let Ok(opened) = PathFd::new(&path) else { continue };
            let access = if path.is_dir() { access } else { access & AccessFs::from_file(abi) };
            rules = rules.add_rule(PathBeneath::new(opened, access)).map_err(|error| told(&error))?;
        }
        rules.restrict_self().map(drop).map_err(|error| told(&error))
    }
}

/// The network is the machine's, and with it come sockets that have a name and no file. Where the kernel can keep the
/// program from these it does.
fn leave_abstract_sockets() -> Result<(), Failure> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::AbstractUnixSocket)
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self)
        .map(drop)
        .map_err(|error| Failure(format!("landlock: {error}")))
}

/// Those that this process has; what it runs may get them again by being root.
pub fn drop_capabilities() -> rustix::io::Result<()> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

fn become_user(uid: u32, gid: u32) -> Result<(), Failure> {
    set_thread_groups(&[]).map_err(|error| failure("groups", error))?;
    set_thread_gid(Gid::from_raw(gid)).map_err(|error| failure("group", error))?;
    set_thread_uid(Uid::from_raw(uid)).map_err(|error| failure("user", error))
}

const NOBODY: u32 = 65_534;

/// A folder of every machine, where any user may go: the run's own may be below some where only root may. What is in it
/// was found before.
const ANYBODYS: &str = "/usr";

/// In the user namespace that the child was made in.
fn be(inside: u32, (uid, gid): (u32, u32)) -> Result<(), Failure> {
    put("/proc/self/setgroups", "deny")?;
    put("/proc/self/uid_map", &format!("{inside} {uid} 1"))?;
    put("/proc/self/gid_map", &format!("{inside} {gid} 1"))
}

/// A keyring of its own, which is empty, in place of the one that came with the keeper's session.
fn forget_keys() {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: no name is given. Where there are no keyrings there is nothing to forget.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

fn put(path: &str, text: &str) -> Result<(), Failure> {
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| failure(path, error))
}

fn failure(what: impl AsRef<Path>, error: impl std::fmt::Display) -> Failure {
    Failure(format!("isolation: {}: {error}", what.as_ref().display()))
}
