//! Keeps the program from all that is not its own. Runs in the child, between fork and exec.
//!
//! Three ways, one promise: of the file system it sees what `read` and `write` of the spec list, and it can neither
//! look into, signal nor trace a process that is not its own.
//!
//! - `User`: a root that has only what is listed, process ids of its own, then another user. Needs root.
//! - `Namespace`: the same in a user namespace.
//! - `Landlock`: the root stays, what is not listed cannot be opened; where the keeper is root, as another user. What
//!   Landlock has no rule for is refused call by call (`calls`). It is the weakest: names of files and what is told
//!   of them can be seen, and where the keeper is no root, modes, owners and times of files that have its user are the
//!   program's to change, wherever they are, and so are the weights of processes. Before Linux 6.12 it may signal
//!   them, too; whoever chooses a way has to know that. So it is for machines where the others cannot be had.
//!
//! And one that keeps nobody apart but makes an end of all that was started: `Processes`, for a program that makes
//! containers. It sees the whole file system, may mount, and is root of its namespaces.

mod calls;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, Scope,
};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change, mount_remount, unmount,
};
use rustix::process::{Gid, Uid, chdir, getegid, geteuid, pivot_root};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_gid, set_thread_groups,
    set_thread_uid,
};

use crate::spec::{Isolation, Spec};

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
    root: PathBuf,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    uid: u32,
    gid: u32,
    outside: (u32, u32),
}

impl Cage {
    /// `folder` is the run's own. The root is made over `place`: any folder that is there, because nobody else sees it.
    pub fn new(spec: &Spec, folder: &Path, place: PathBuf) -> io::Result<Self> {
        let cage = Self {
            isolation: spec.isolation,
            root: place,
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
            Isolation::None | Isolation::Namespace | Isolation::Processes => false,
            Isolation::User => true,
            Isolation::Landlock => self.outside.0 == 0 && self.uid != 0,
        };
        is_other.then_some((self.uid, self.gid))
    }

    /// What the program may write and is the run's own becomes the program's. What others have too stays theirs.
    fn give_away(&self, folder: &Path) -> io::Result<()> {
        let Some((uid, gid)) = self.owner() else { return Ok(()) };
        for path in &self.write {
            let Ok(path) = fs::canonicalize(path) else { continue };
            if path.starts_with(folder) && path != folder {
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
                self.change_root()?;
                self.become_user()?;
            }
            Isolation::Namespace => {
                // One that finds itself root would try what it cannot do.
                be(NOBODY, self.outside)?;
                self.change_root()?;
            }
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

    fn own_processes(&self) -> Result<(), Failure> {
        if self.outside.0 != 0 {
            be(0, self.outside)?;
        }
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
            .map_err(|error| failure("making mounts private", error))?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("proc", "/proc", "proc", safe, Some(c"")).map_err(|error| failure("/proc", error))
    }

    fn change_root(&self) -> Result<(), Failure> {
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
            .map_err(|error| failure("making mounts private", error))?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", &self.root, "tmpfs", safe, Some(c"size=1m,mode=755")).map_err(|error| failure("root", error))?;
        for path in &self.read {
            self.bind(path, SAFE | libc::MOUNT_ATTR_RDONLY)?;
        }
        for path in &self.write {
            self.bind(path, SAFE)?;
        }
        for device in DEVICES {
            let path = Path::new("/dev").join(device);
            let place = self.place_of(&path);
            make_file(&place)?;
            mount_bind_recursive(&path, &place).map_err(|error| failure(&path, error))?;
        }
        self.link_streams()?;
        self.mount_proc()?;
        mount_remount(&self.root, safe | MountFlags::RDONLY | MountFlags::BIND, c"")
            .map_err(|error| failure("root, read-only", error))?;
        chdir(&self.root).map_err(|error| failure("root", error))?;
        pivot_root(".", ".").map_err(|error| failure("pivot_root", error))?;
        unmount(".", UnmountFlags::DETACH).map_err(|error| failure("the old root", error))?;
        chdir("/").map_err(|error| failure("/", error))
    }

    fn bind(&self, path: &Path, attributes: u64) -> Result<(), Failure> {
        let Ok(found) = fs::symlink_metadata(path) else {
            // Such as /lib64 on machines that have none.
            return Ok(());
        };
        let place = self.place_of(path);
        if found.is_symlink() {
            let target = fs::read_link(path).map_err(|error| failure(path, error))?;
            make_parent(&place)?;
            return symlink(target, &place).map_err(|error| failure(path, error));
        }
        if found.is_dir() {
            fs::create_dir_all(&place).map_err(|error| failure(path, error))?;
        } else {
            make_file(&place)?;
        }
        mount_bind_recursive(path, &place).map_err(|error| failure(path, error))?;
        restrict_mounts(&place, attributes).map_err(|error| failure(path, error))
    }

    fn place_of(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Of its own processes alone: it has a namespace of them.
    fn mount_proc(&self) -> Result<(), Failure> {
        let place = self.root.join("proc");
        fs::create_dir(&place).map_err(|error| failure("/proc", error))?;
        // Read-only: a user namespace of root's is still root where the kernel asks for its switches in /proc/sys.
        let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
        mount("proc", &place, "proc", safe, Some(c"")).map_err(|error| failure("/proc", error))
    }

    /// Names that shells and programs use for their own streams.
    fn link_streams(&self) -> Result<(), Failure> {
        for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
            let place = self.root.join("dev").join(name);
            symlink(format!("/proc/self/fd{target}"), place).map_err(|error| failure("/dev", error))?;
        }
        Ok(())
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
        if self.owner().is_some() {
            self.become_user()?;
        }
        drop_capabilities().map_err(|error| failure("capabilities", error))
    }

    fn become_user(&self) -> Result<(), Failure> {
        set_thread_groups(&[]).map_err(|error| failure("groups", error))?;
        set_thread_gid(Gid::from_raw(self.gid)).map_err(|error| failure("group", error))?;
        set_thread_uid(Uid::from_raw(self.uid)).map_err(|error| failure("user", error))
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

const NOBODY: u32 = 65_534;

/// In the user namespace that the child was made in.
fn be(inside: u32, (uid, gid): (u32, u32)) -> Result<(), Failure> {
    put("/proc/self/setgroups", "deny")?;
    put("/proc/self/uid_map", &format!("{inside} {uid} 1"))?;
    put("/proc/self/gid_map", &format!("{inside} {gid} 1"))
}

const SAFE: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// For what is mounted there and for all that is mounted below. What was more restricted stays so.
fn restrict_mounts(place: &Path, attributes: u64) -> io::Result<()> {
    let path = CString::new(place.as_os_str().as_bytes())?;
    let wanted = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path ends with NUL, and the size is that of what is pointed to.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A keyring of its own, which is empty, in place of the one that came with the keeper's session.
fn forget_keys() {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: no name is given. Where there are no keyrings there is nothing to forget.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

fn make_parent(place: &Path) -> Result<(), Failure> {
    match place.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(|error| failure(parent, error)),
        None => Ok(()),
    }
}

fn make_file(place: &Path) -> Result<(), Failure> {
    make_parent(place)?;
    File::create(place).map(drop).map_err(|error| failure(place, error))
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
