//! Sandbox of the program. Runs in the child, between fork and exec.
//!
//! Three modes isolate the program. It can use only the listed paths, and cannot inspect, signal or trace other
//! processes. The modes differ in their means and exceptions:
//! - `User`: a root file system with only the listed paths, a PID namespace, and another user. The keeper must be root.
//! - `Namespace`: the same in a user namespace, as user `nobody`. If the keeper is root, the program has another user
//!   outside of the namespace. As root, it could read protected system files below the listed paths.
//! - `Landlock`: only listed paths can be opened. This mode is the weakest, because the program sees the metadata of all
//!   files. If the keeper is not root, the program can also change metadata of its user's files and priorities of its
//!   user's processes. Before Linux 6.12, it can signal these processes.
//!
//! In all three modes `seccomp` refuses system calls that game servers do not need.
//!
//! The mode `Processes` does not isolate. It only ensures that all processes of a run end together, for OCI runtimes.

pub mod build_sandbox;
mod exec_error;
mod root_filesystem;
mod scratch;
mod seccomp;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, lchown};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Gid, Pid, Uid, getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, set_no_new_privs, set_thread_gid, set_thread_groups,
    set_thread_uid, unshare_unsafe,
};

use crate::processes;
use crate::run_spec::{Isolation, RunSpec};
pub use exec_error::ExecError;
use exec_error::failure;
use root_filesystem::{DEVICES, MountSource, RootFilesystem, Surroundings};
use scratch::ScratchMount;

/// Paths in `/proc` that a program under Landlock can read. All of `/proc` would show data of other processes.
const PROC_READ_PATHS: [&str; 9] = [
    "/proc/self",
    "/proc/cgroups",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/version",
    "/proc/sys/kernel",
];

/// Isolation of one program. It is prepared before the fork, so that the child allocates and blocks little.
pub struct Sandbox {
    isolation: Isolation,
    root: Option<RootFilesystem>,
    scratch: Option<ScratchMount>,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    uid: u32,
    gid: u32,
    keeper: (u32, u32),
    has_cgroup_views: bool,
}

impl Sandbox {
    pub fn new(spec: &RunSpec, folder: &Path) -> io::Result<Self> {
        let staging = match spec.isolation {
            Isolation::User => Some(folder.to_owned()),
            Isolation::Namespace => Some(PathBuf::from(STAGING_FOLDER)),
            Isolation::None | Isolation::Landlock | Isolation::Processes => None,
        };
        let is_scratch = |path: &Path| spec.scratch.as_ref().is_some_and(|scratch| scratch.path == path);
        let shared_write: Vec<PathBuf> = spec.write.iter().filter(|path| !is_scratch(path)).cloned().collect();
        let mut sandbox = Self {
            isolation: spec.isolation,
            root: None,
            scratch: None,
            // Under Landlock, the program reads the files of its groups at their own paths.
            read: spec.read.iter().chain(spec.cgroup_views.iter().map(|(_, path)| path)).cloned().collect(),
            write: spec.write.clone(),
            uid: spec.uid,
            gid: spec.gid,
            keeper: (geteuid().as_raw(), getegid().as_raw()),
            has_cgroup_views: !spec.cgroup_views.is_empty(),
        };
        let surroundings = spec.write.first().map(|home| sandbox.surroundings(home, spec));
        sandbox.root = staging.map(|staging| RootFilesystem::new(&spec.read, &shared_write, staging, surroundings));
        sandbox.chown_write_paths(folder)?;
        if let Some(scratch) = &spec.scratch {
            sandbox.scratch = Some(ScratchMount::create(scratch, folder, sandbox.owner())?);
        }
        Ok(sandbox)
    }

    /// Returns the user and group IDs of the program if they differ from those of the keeper.
    pub fn owner(&self) -> Option<(u32, u32)> {
        let is_other_user = match self.isolation {
            Isolation::None | Isolation::Processes => false,
            Isolation::User => true,
            Isolation::Namespace | Isolation::Landlock => self.keeper.0 == 0 && self.uid != 0,
        };
        is_other_user.then_some((self.uid, self.gid))
    }

    fn surroundings(&self, home: &Path, spec: &RunSpec) -> Surroundings {
        let is_mapped = self.isolation == Isolation::Namespace;
        Surroundings {
            home: home.to_owned(),
            account: if is_mapped { (NOBODY, NOBODY) } else { (self.uid, self.gid) },
            // In a user namespace, the process has become the program's user before it creates the folder.
            owner: if is_mapped { None } else { self.owner() },
            machine_id: spec.machine_id.clone(),
            cgroup_views: spec.cgroup_views.clone(),
        }
    }

    /// Reports whether the keeper must call `map_user` before the child calls `enter`.
    ///
    /// The child itself could map only its own user.
    pub fn needs_user_mapping(&self) -> bool {
        self.isolation == Isolation::Namespace && self.owner().is_some()
    }

    pub fn map_user(&self, process: Pid) -> Result<(), ExecError> {
        for (map, outer_id) in [("uid_map", self.uid), ("gid_map", self.gid)] {
            write_file(&format!("/proc/{}/{map}", process.as_raw_nonzero()), &format!("{NOBODY} {outer_id} 1"))?;
        }
        Ok(())
    }

    /// Reports whether the kernel counts the processes of this run separately from those of other runs.
    pub fn has_own_process_count(&self) -> bool {
        let has_namespace = match self.isolation {
            Isolation::Namespace => true,
            Isolation::Processes => self.keeper.0 != 0,
            Isolation::None | Isolation::User | Isolation::Landlock => false,
        };
        self.owner().is_some() || has_namespace && processes::counts_processes_by_user_namespace()
    }

    /// Makes the program's user the owner of writable paths inside the run folder.
    fn chown_write_paths(&self, folder: &Path) -> io::Result<()> {
        let Some((uid, gid)) = self.owner() else { return Ok(()) };
        for path in &self.write {
            let is_direct_child = path.parent() == Some(folder) && path.file_name().is_some();
            let is_direct_child =
                is_direct_child && fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_symlink());
            if is_direct_child {
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

    pub fn enter(&self) -> Result<(), ExecError> {
        match self.isolation {
            Isolation::None => {}
            Isolation::User => {
                self.enter_root(|| Ok(()))?;
                become_user(self.uid, self.gid)?;
            }
            // Maps to a user other than root, because programs try calls that fail when they run as root.
            Isolation::Namespace => self.enter_root(|| self.become_unprivileged())?,
            Isolation::Landlock => {
                self.apply_landlock()?;
                self.drop_privileges()?;
            }
            Isolation::Processes => self.mount_own_proc()?,
        }
        if self.isolation != Isolation::None {
            join_empty_keyring();
        }
        if self.isolation.has_pid_namespace() {
            restrict_abstract_sockets()?;
        }
        set_no_new_privs(true).map_err(|error| failure("no_new_privs", error))?;
        match self.isolation {
            // An OCI runtime installs the same profile.
            Isolation::None | Isolation::Processes => Ok(()),
            Isolation::User | Isolation::Namespace | Isolation::Landlock => {
                seccomp::install_filters(self.isolation == Isolation::Landlock)
                    .map_err(|error| failure("system calls", error))
            }
        }
    }

    fn enter_root(&self, change_user: impl FnOnce() -> Result<(), ExecError>) -> Result<(), ExecError> {
        let Some(root) = &self.root else { return Ok(()) };
        if self.has_cgroup_views {
            // The program sees its own groups as the roots of their hierarchies.
            // SAFETY: this process has one thread.
            unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) }.map_err(|error| failure("control groups", error))?;
        }
        let mut sources = root.open_sources()?;
        if let Some(scratch) = &self.scratch {
            sources.push(MountSource::folder(scratch.path(), scratch.open()?));
        }
        change_user()?;
        root.enter(sources)
    }

    fn become_unprivileged(&self) -> Result<(), ExecError> {
        match self.keeper.0 {
            0 if self.uid == 0 => Err(ExecError("isolation: root's program has no user of its own".to_owned())),
            0 => become_user(NOBODY, NOBODY),
            _ => map_user_namespace(NOBODY, self.keeper),
        }
    }

    fn mount_own_proc(&self) -> Result<(), ExecError> {
        if self.keeper.0 != 0 {
            map_user_namespace(0, self.keeper)?;
        }
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
            .map_err(|error| failure("making mounts private", error))?;
        if let Some(scratch) = &self.scratch {
            scratch.attach()?;
        }
        let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("proc", "/proc", "proc", safe, Some(c"")).map_err(|error| failure("/proc", error))
    }

    /// Drops all capabilities of root, because Landlock does not restrict kernel modules, devices and the clock.
    fn drop_privileges(&self) -> Result<(), ExecError> {
        if self.keeper.0 != 0 {
            return Ok(());
        }
        drop_bounding_set(CapabilitySet::empty());
        if let Some((uid, gid)) = self.owner() {
            become_user(uid, gid)?;
        }
        drop_capabilities().map_err(|error| failure("capabilities", error))
    }

    fn apply_landlock(&self) -> Result<(), ExecError> {
        let reads = self.read.iter().cloned().chain(PROC_READ_PATHS.map(PathBuf::from));
        restrict_paths(
            reads
                .map(|path| (path, AccessFs::from_read(LANDLOCK)))
                .chain(self.write.iter().cloned().map(|path| (path, AccessFs::from_all(LANDLOCK))))
                .chain(device_rules()),
        )
    }
}

/// Last version of Landlock with rights that the rules use.
const LANDLOCK: ABI = ABI::V5;

type PathRule = (PathBuf, BitFlags<AccessFs>);

fn device_rules() -> impl Iterator<Item = PathRule> {
    DEVICES.iter().map(|name| (Path::new("/dev").join(name), AccessFs::ReadFile | AccessFs::WriteFile))
}

/// Denies every access to files that no rule allows. Ignores rules of missing paths.
fn restrict_paths(path_rules: impl Iterator<Item = PathRule>) -> Result<(), ExecError> {
    // A missing right is an error. Later rights and the scopes are optional.
    let failed = |error: &dyn std::fmt::Display| ExecError(format!("landlock: {error}"));
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V3))
        .map_err(|error| failed(&error))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))
        .map_err(|error| failed(&error))?
        .scope(Scope::Signal | Scope::AbstractUnixSocket)
        .map_err(|error| failed(&error))?
        .create()
        .map_err(|error| failed(&error))?;
    for (path, access) in path_rules {
        let Ok(opened) = PathFd::new(&path) else { continue };
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(LANDLOCK) };
        rules = rules.add_rule(PathBeneath::new(opened, access)).map_err(|error| failed(&error))?;
    }
    rules.restrict_self().map(drop).map_err(|error| failed(&error))
}

/// Denies connections to abstract Unix sockets outside of the sandbox, if the kernel supports this.
fn restrict_abstract_sockets() -> Result<(), ExecError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::AbstractUnixSocket)
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self)
        .map(drop)
        .map_err(|error| ExecError(format!("landlock: {error}")))
}

fn drop_bounding_set(kept: CapabilitySet) {
    for capability in (0..64).filter(|number| kept.bits() & (1 << number) == 0) {
        // SAFETY: a plain call; it fails behind the last capability.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } < 0 {
            break;
        }
    }
}

pub fn drop_capabilities() -> rustix::io::Result<()> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

fn become_user(uid: u32, gid: u32) -> Result<(), ExecError> {
    set_thread_groups(&[]).map_err(|error| failure("groups", error))?;
    set_thread_gid(Gid::from_raw(gid)).map_err(|error| failure("group", error))?;
    set_thread_uid(Uid::from_raw(uid)).map_err(|error| failure("user", error))
}

const NOBODY: u32 = 65_534;

/// Mount point of the program's root file system with `Isolation::Namespace`.
///
/// Every user can enter this folder. Some users cannot enter the run folder.
const STAGING_FOLDER: &str = "/usr";

fn map_user_namespace(inner_id: u32, (uid, gid): (u32, u32)) -> Result<(), ExecError> {
    write_file("/proc/self/setgroups", "deny")?;
    write_file("/proc/self/uid_map", &format!("{inner_id} {uid} 1"))?;
    write_file("/proc/self/gid_map", &format!("{inner_id} {gid} 1"))
}

fn join_empty_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: no name is given. The call fails on kernels without keyrings, which is fine.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

fn write_file(path: &str, text: &str) -> Result<(), ExecError> {
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| failure(path, error))
}
