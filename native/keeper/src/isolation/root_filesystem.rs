//! Root file system of a run: a private mount tree that shows only the listed paths.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind_recursive,
    mount_change, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root};

use super::exec_error::{ExecError, failure};

pub const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

const SAFE: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const SAFE_READ: u64 = SAFE | libc::MOUNT_ATTR_RDONLY;
const SIZE: &std::ffi::CStr = c"size=1m,mode=755";
const HIDE_OTHER_USERS: &std::ffi::CStr = c"hidepid=2";

pub struct RootFilesystem {
    staging: PathBuf,
    paths: Vec<(PathBuf, u64)>,
    has_proc: bool,
}

impl RootFilesystem {
    pub fn new(read: &[PathBuf], write: &[PathBuf], staging: PathBuf) -> Self {
        let readable = read.iter().map(|path| (path.clone(), SAFE_READ));
        let writable = write.iter().map(|path| (path.clone(), SAFE));
        Self { staging, paths: readable.chain(writable).collect(), has_proc: true }
    }

    pub fn without_proc(self) -> Self {
        Self { has_proc: false, ..self }
    }

    /// Opens the listed paths before the user changes, because the new user may have no access to them.
    pub fn open_sources(&self) -> Result<Vec<MountSource>, ExecError> {
        self.paths.iter().filter_map(|(path, attributes)| MountSource::open(path, *attributes).transpose()).collect()
    }

    pub fn enter(&self, sources: Vec<MountSource>) -> Result<(), ExecError> {
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
            .map_err(|error| failure("making mounts private", error))?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", &self.staging, "tmpfs", safe, Some(SIZE)).map_err(|error| failure("root", error))?;
        for source in sources {
            source.attach(&self.staging)?;
        }
        for device in DEVICES {
            let path = Path::new("/dev").join(device);
            let mount_point = path_in_root(&self.staging, &path);
            create_file(&mount_point)?;
            mount_bind_recursive(&path, &mount_point).map_err(|error| failure(&path, error))?;
        }
        if self.has_proc {
            self.link_standard_streams()?;
            self.mount_proc()?;
        }
        mount_remount(&self.staging, safe | MountFlags::RDONLY | MountFlags::BIND, c"")
            .map_err(|error| failure("root, read-only", error))?;
        self.pivot()
    }

    /// Mounts `/proc` without processes of other users, such as a keeper in the same PID namespace.
    fn mount_proc(&self) -> Result<(), ExecError> {
        let mount_point = self.staging.join("proc");
        fs::create_dir(&mount_point).map_err(|error| failure("/proc", error))?;
        // Read-only: in a user namespace of root, `/proc/sys` would accept writes.
        let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
        mount("proc", mount_point, "proc", safe, Some(HIDE_OTHER_USERS)).map_err(|error| failure("/proc", error))
    }

    fn pivot(&self) -> Result<(), ExecError> {
        chdir(&self.staging).map_err(|error| failure("root", error))?;
        pivot_root(".", ".").map_err(|error| failure("pivot_root", error))?;
        unmount(".", UnmountFlags::DETACH).map_err(|error| failure("the old root", error))?;
        chdir("/").map_err(|error| failure("/", error))
    }

    fn link_standard_streams(&self) -> Result<(), ExecError> {
        for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
            let mount_point = self.staging.join("dev").join(name);
            symlink(format!("/proc/self/fd{target}"), mount_point).map_err(|error| failure("/dev", error))?;
        }
        Ok(())
    }
}

pub struct MountSource {
    path: PathBuf,
    kind: SourceKind,
}

enum SourceKind {
    Folder(OwnedFd),
    File(OwnedFd),
    Link(PathBuf),
}

impl MountSource {
    /// Returns the source for a mount that is not attached to a path yet.
    pub fn folder(path: &Path, tree: OwnedFd) -> Self {
        Self { path: path.to_owned(), kind: SourceKind::Folder(tree) }
    }

    fn open(path: &Path, attributes: u64) -> Result<Option<Self>, ExecError> {
        let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(None) };
        let failed = |error: io::Error| failure(path, error);
        let kind = if metadata.is_symlink() {
            SourceKind::Link(fs::read_link(path).map_err(failed)?)
        } else {
            let tree = clone_mounts(path, attributes).map_err(failed)?;
            if metadata.is_dir() { SourceKind::Folder(tree) } else { SourceKind::File(tree) }
        };
        Ok(Some(Self { path: path.to_owned(), kind }))
    }

    fn attach(self, root: &Path) -> Result<(), ExecError> {
        let mount_point = path_in_root(root, &self.path);
        let tree = match self.kind {
            SourceKind::Link(target) => {
                create_parent(&mount_point)?;
                return symlink(target, &mount_point).map_err(|error| failure(&self.path, error));
            }
            SourceKind::Folder(tree) => {
                fs::create_dir_all(&mount_point).map_err(|error| failure(&self.path, error))?;
                tree
            }
            SourceKind::File(tree) => {
                create_file(&mount_point)?;
                tree
            }
        };
        let result = move_mount(&tree, "", CWD, &mount_point, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
        result.map_err(|error| failure(&self.path, error))
    }
}

/// Clones the mounts at a path, and adds attributes such as read-only. The clone does not receive later mounts.
fn clone_mounts(path: &Path, attributes: u64) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = open_tree(CWD, path, flags)?;
    let attributes_to_set =
        libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    // SAFETY: the empty path ends with NUL, and the size matches the structure.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_RECURSIVE | libc::AT_EMPTY_PATH,
            &raw const attributes_to_set,
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(tree) }
}

fn path_in_root(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn create_parent(mount_point: &Path) -> Result<(), ExecError> {
    match mount_point.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(|error| failure(parent, error)),
        None => Ok(()),
    }
}

fn create_file(mount_point: &Path) -> Result<(), ExecError> {
    create_parent(mount_point)?;
    File::create(mount_point).map(drop).map_err(|error| failure(mount_point, error))
}
