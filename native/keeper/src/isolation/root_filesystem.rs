//! Root file system of a run: a private mount tree that shows only the listed paths.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind,
    mount_bind_recursive, mount_change, mount_move, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root};

use super::exec_error::{ExecError, failure};

/// Name of the program's user and group.
const ACCOUNT: &str = "server";
const ACCOUNT_FILES: [&str; 3] = ["/etc/passwd", "/etc/group", "/etc/machine-id"];
const HOME_PLACE: &str = ".home";
const ANYONE: u32 = 0o1777;
const SHARED_MEMORY: &std::ffi::CStr = c"size=64m,mode=1777";

pub const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

const SAFE: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const SAFE_READ: u64 = SAFE | libc::MOUNT_ATTR_RDONLY;
const SIZE: &std::ffi::CStr = c"size=1m,mode=755";
const HIDE_OTHER_USERS: &std::ffi::CStr = c"hidepid=2";

/// Parts of a machine that a program expects besides files: an account, shared memory, a folder for temporary files.
pub struct Surroundings {
    /// Scratch folder. It is the home of the account, and has the folder that the program sees as `/tmp`.
    pub home: PathBuf,
    /// User and group of the program, as the program sees them.
    pub account: (u32, u32),
    /// User and group that own the folder of `/tmp`, if they are not those of this process.
    pub owner: Option<(u32, u32)>,
    pub machine_id: String,
    /// Files of control groups: mount point, and path on the machine.
    pub cgroup_views: Vec<(PathBuf, PathBuf)>,
}

pub struct RootFilesystem {
    staging: PathBuf,
    paths: Vec<(PathBuf, u64)>,
    /// `None`: the root has no `/proc` either.
    surroundings: Option<Surroundings>,
}

impl RootFilesystem {
    pub fn new(read: &[PathBuf], write: &[PathBuf], staging: PathBuf, surroundings: Option<Surroundings>) -> Self {
        let is_replaced =
            |path: &&PathBuf| surroundings.is_some() && ACCOUNT_FILES.contains(&path.to_string_lossy().as_ref());
        let readable = read.iter().filter(|path| !is_replaced(path)).map(|path| (path.clone(), SAFE_READ));
        let writable = write.iter().map(|path| (path.clone(), SAFE));
        Self { staging, paths: readable.chain(writable).collect(), surroundings }
    }

    /// Opens the listed paths before the user changes, because the new user may have no access to them.
    pub fn open_sources(&self) -> Result<Vec<MountSource>, ExecError> {
        let paths = self.paths.iter().map(|(path, attributes)| (path, path, *attributes));
        let views = self.surroundings.iter().flat_map(|more| &more.cgroup_views);
        let views = views.map(|(mount_point, path)| (mount_point, path, SAFE_READ));
        paths
            .chain(views)
            .filter_map(|(mount_point, path, attributes)| MountSource::open(mount_point, path, attributes).transpose())
            .collect()
    }

    pub fn enter(&self, sources: Vec<MountSource>) -> Result<(), ExecError> {
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
            .map_err(|error| failure("making mounts private", error))?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", &self.staging, "tmpfs", safe, Some(SIZE)).map_err(|error| failure("root", error))?;
        let (home, others): (Vec<_>, Vec<_>) = sources
            .into_iter()
            .partition(|source| self.surroundings.as_ref().is_some_and(|more| more.home == source.path));
        // `/tmp` comes first, because listed paths can be below it.
        if let (Some(more), Some(home)) = (&self.surroundings, home.into_iter().next()) {
            self.attach_home(more, home)?;
        }
        for source in others {
            source.attach(&self.staging)?;
        }
        for device in DEVICES {
            let path = Path::new("/dev").join(device);
            let mount_point = path_in_root(&self.staging, &path);
            create_file(&mount_point)?;
            mount_bind_recursive(&path, &mount_point).map_err(|error| failure(&path, error))?;
        }
        if let Some(more) = &self.surroundings {
            self.link_standard_streams()?;
            self.mount_proc()?;
            self.mount_shared_memory()?;
            self.write_account(more)?;
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

    /// Attaches the scratch folder, and a folder in it as `/tmp`.
    fn attach_home(&self, more: &Surroundings, home: MountSource) -> Result<(), ExecError> {
        let SourceKind::Folder(tree) = home.kind else { return home.attach(&self.staging) };
        let failed = |error: &dyn std::fmt::Display| failure("/tmp", error);
        let place = self.staging.join(HOME_PLACE);
        fs::create_dir(&place).map_err(|error| failed(&error))?;
        move_mount(&tree, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(|error| failed(&error))?;
        let (folder, mount_point) = (place.join("tmp"), self.staging.join("tmp"));
        for path in [&folder, &mount_point] {
            fs::create_dir(path).map_err(|error| failed(&error))?;
        }
        fs::set_permissions(&folder, Permissions::from_mode(ANYONE)).map_err(|error| failed(&error))?;
        if let Some((uid, gid)) = more.owner {
            lchown(&folder, Some(uid), Some(gid)).map_err(|error| failed(&error))?;
        }
        mount_bind(&folder, &mount_point).map_err(|error| failed(&error))?;
        let final_place = path_in_root(&self.staging, &home.path);
        fs::create_dir_all(&final_place).map_err(|error| failure(&home.path, error))?;
        mount_move(&place, &final_place).map_err(|error| failure(&home.path, error))?;
        fs::remove_dir(&place).map_err(|error| failed(&error))
    }

    /// Mounts memory for `shm_open`, of the size that containers have. Its pages count as memory of the program.
    fn mount_shared_memory(&self) -> Result<(), ExecError> {
        let mount_point = self.staging.join("dev/shm");
        fs::create_dir(&mount_point).map_err(|error| failure("/dev/shm", error))?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("tmpfs", mount_point, "tmpfs", safe, Some(SHARED_MEMORY)).map_err(|error| failure("/dev/shm", error))
    }

    /// Writes the files that give the program's user a name and a home, and an invented id of the machine.
    fn write_account(&self, more: &Surroundings) -> Result<(), ExecError> {
        let ((uid, gid), home) = (more.account, more.home.display());
        let users = format!("{ACCOUNT}:x:{uid}:{gid}:game server:{home}:/bin/sh\nroot:x:0:0:root:/:/bin/sh\n");
        let groups = format!("{ACCOUNT}:x:{gid}:\nroot:x:0:\n");
        let machine_id = format!("{}\n", more.machine_id);
        for (path, text) in ACCOUNT_FILES.into_iter().zip([users, groups, machine_id]) {
            let file = path_in_root(&self.staging, Path::new(path));
            create_parent(&file)?;
            fs::write(&file, text).map_err(|error| failure(path, error))?;
        }
        Ok(())
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

    fn open(mount_point: &Path, path: &Path, attributes: u64) -> Result<Option<Self>, ExecError> {
        let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(None) };
        let failed = |error: io::Error| failure(path, error);
        let kind = if metadata.is_symlink() {
            SourceKind::Link(fs::read_link(path).map_err(failed)?)
        } else {
            let tree = clone_mounts(path, attributes).map_err(failed)?;
            if metadata.is_dir() { SourceKind::Folder(tree) } else { SourceKind::File(tree) }
        };
        Ok(Some(Self { path: mount_point.to_owned(), kind }))
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
