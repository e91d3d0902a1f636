//! Sandbox of a build worker, the process that checks or unpacks one uploaded build:
//! `hosting-keeper --build-sandbox uid=<uid> [read=<path>] [list=<path>] [write=<path>] [-- <program> [<argument>]]`.
//!
//! The program replaces this process, so its PID and its parent stay. It keeps the environment and the descriptors 0, 1
//! and 2. It has no sockets, and starts and signals no processes. `read` paths and below are readable, `write` paths
//! and below also writable, and of `list` paths only the names in them are readable. Everything else is invisible.
//!
//! Under root, the program has the user `uid`. With a `write` path, it keeps the capabilities that set owners of files.
//!
//! A kernel or an outer container can refuse some parts. The other parts apply nevertheless. Without a program, this
//! process prints the refused parts, one in each line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use landlock::{Access, AccessFs, BitFlags};
use rustix::fs::Mode;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Resource, chdir, getegid, geteuid, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, capabilities, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, unshare_unsafe,
};

use super::root_filesystem::RootFilesystem;
use super::{
    ExecError, LANDLOCK, NOBODY, STAGING_FOLDER, become_user, device_rules, drop_bounding_set, failure,
    join_empty_keyring, map_user_namespace, restrict_paths, seccomp,
};
use crate::program::limit;

/// Limit of the address space. Paths and links of a hostile archive could take any amount.
const MEMORY_MAX_BYTES: u64 = 2 << 30;
const FILES_MAX: u64 = 256;

pub struct BuildSandbox {
    uid: u32,
    read: Vec<PathBuf>,
    list: Vec<PathBuf>,
    write: Vec<PathBuf>,
    command: Vec<OsString>,
}

impl BuildSandbox {
    /// Returns `None` if the words are not those of the usage above.
    pub fn parse(words: &[OsString]) -> Option<Self> {
        let mut sandbox = Self { uid: 0, read: Vec::new(), list: Vec::new(), write: Vec::new(), command: Vec::new() };
        let (options, command) = match words.iter().position(|word| word == "--") {
            Some(at) => (&words[..at], &words[at + 1..]),
            None => (words, &[][..]),
        };
        for option in options {
            let equals = option.as_bytes().iter().position(|&byte| byte == b'=')?;
            let (name, value) = option.as_bytes().split_at(equals);
            let value = std::ffi::OsStr::from_bytes(&value[1..]);
            match name {
                b"uid" => sandbox.uid = value.to_str()?.parse().ok()?,
                b"read" => sandbox.read.push(value.into()),
                b"list" => sandbox.list.push(value.into()),
                b"write" => sandbox.write.push(value.into()),
                _ => return None,
            }
        }
        sandbox.command = command.to_vec();
        (sandbox.uid != 0).then_some(sandbox)
    }

    /// Enters the sandbox and becomes the program. Returns only if there is no program, or after an error.
    pub fn run(&self) -> Result<(), ExecError> {
        let refused = self.enter()?;
        let Some((program, arguments)) = self.command.split_first() else {
            for part in refused {
                println!("{part}");
            }
            return Ok(());
        };
        Err(failure(program, Command::new(program).args(arguments).exec()))
    }

    /// Returns the parts of the sandbox that this machine refuses.
    fn enter(&self) -> Result<Vec<String>, ExecError> {
        let mut refused = Vec::new();
        let is_root = geteuid().is_root();
        // SAFETY: only marks descriptors, and none is used after the exec.
        unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
        Self::set_limits().map_err(|error| failure("limits", error))?;
        chdir("/").map_err(|error| failure("/", error))?;
        join_empty_keyring();
        let root = self.enter_root(is_root);
        let landlock = self.restrict_paths();
        let has_limited_paths = root.is_ok() || landlock.is_ok();
        refused.extend(root.err().map(|error| format!("a root file system of its own: {}", error.0)));
        refused.extend(landlock.err().map(|error| format!("file access rules: {}", error.0)));
        if is_root {
            self.become_user(has_limited_paths).map_err(|error| failure("user", error))?;
        }
        set_no_new_privs(true).map_err(|error| failure("no_new_privs", error))?;
        refused.extend(seccomp::install_build_filters().err().map(|error| format!("system call filters: {error}")));
        Ok(refused)
    }

    fn set_limits() -> rustix::io::Result<()> {
        limit(Resource::As, MEMORY_MAX_BYTES)?;
        limit(Resource::Nofile, FILES_MAX)?;
        limit(Resource::Core, 0)
    }

    /// Replaces the root by the listed paths, all read-only but those of `write`.
    fn enter_root(&self, is_root: bool) -> Result<(), ExecError> {
        let keeper = (geteuid().as_raw(), getegid().as_raw());
        let user_namespace = if is_root { UnshareFlags::empty() } else { UnshareFlags::NEWUSER };
        // SAFETY: this process has one thread, and no descriptors are shared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWIPC | user_namespace) }
            .map_err(|error| failure("namespaces", error))?;
        let root = RootFilesystem::new(&self.read, &self.write, PathBuf::from(STAGING_FOLDER), None);
        let sources = root.open_sources()?;
        if !is_root {
            map_user_namespace(NOBODY, keeper)?;
        }
        // Every user must be able to traverse the new folders above the listed paths.
        let mask = umask(Mode::from_raw_mode(0o022));
        let entered = root.enter(sources);
        umask(mask);
        if entered.is_err() {
            // The old root is usable again without the mount above one of its folders.
            let _ = unmount(STAGING_FOLDER, UnmountFlags::DETACH);
        }
        entered
    }

    fn restrict_paths(&self) -> Result<(), ExecError> {
        let with = |paths: &[PathBuf], access: BitFlags<AccessFs>| {
            paths.iter().map(|path| (path.clone(), access)).collect::<Vec<_>>()
        };
        restrict_paths(
            with(&self.read, AccessFs::from_read(LANDLOCK))
                .into_iter()
                .chain(with(&self.list, AccessFs::ReadDir.into()))
                .chain(with(&self.write, AccessFs::from_all(LANDLOCK)))
                .chain(device_rules()),
        )
    }

    /// Changes the user. The program keeps capabilities over files only, and loses them if it could use them on all
    /// files for reading alone.
    fn become_user(&self, has_limited_paths: bool) -> rustix::io::Result<()> {
        let kept = match (self.write.is_empty(), has_limited_paths) {
            (false, _) => CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER,
            // The installation of Python may be in a folder that only root can read.
            (true, true) => CapabilitySet::DAC_READ_SEARCH,
            (true, false) => CapabilitySet::empty(),
        };
        let kept = kept & capabilities(None)?.permitted;
        drop_bounding_set(kept);
        set_keep_capabilities(true)?;
        become_user(self.uid, self.uid).map_err(|_| rustix::io::Errno::PERM)?;
        set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
        for capability in kept.iter() {
            configure_capability_in_ambient_set(capability, true)?;
        }
        Ok(())
    }
}
