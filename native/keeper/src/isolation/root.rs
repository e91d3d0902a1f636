//! A root that shows only what is listed: a tree of mounts that nobody else sees.
//!
//! It is made in one of two ways. Alone: all of it in a namespace of mounts that came with the process. In layers: what
//! runs have in common (programs of the machine, devices, names of streams) is a template, which may be there already;
//! the run has a copy of its mounts, and above them, at `top`, what is its own. A template is read-only and has nothing
//! of any run, and what is mounted in a copy is in no other.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind_recursive,
    mount_change, mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::{DEVICES, Failure, failure};
use crate::templates::{Giver, Handed};

const SAFE: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
const SAFE_READ: u64 = SAFE | libc::MOUNT_ATTR_RDONLY;
const SIZE: &std::ffi::CStr = c"size=1m,mode=755";
const HIDES_OTHERS: &std::ffi::CStr = c"hidepid=2";

/// What is shown, and how it is made.
pub struct Root {
    /// What is made is mounted there first.
    place: PathBuf,
    /// What is the run's own is below it; `/` where nothing is handed on.
    top: PathBuf,
    shared: Vec<PathBuf>,
    own: Vec<(PathBuf, u64)>,
    template: Template,
}

enum Template {
    /// There is none, and none is made.
    None,
    /// A namespace that has it.
    Made(OwnedFd),
    /// It is made, and given to whoever comes later; of this.
    ToMake(Vec<u8>, Giver),
}

impl Root {
    /// Of what is listed for reading, and for writing. `place`: any folder that is there.
    pub fn new(read: &[PathBuf], write: &[PathBuf], place: PathBuf, handed: Option<Handed>) -> Self {
        let writable = write.iter().map(|path| (path.clone(), SAFE));
        let Some(handed) = handed.filter(|handed| has_layers(&handed.top, read, write)) else {
            let (top, template) = (PathBuf::from("/"), Template::None);
            return Self { place, top, shared: read.to_vec(), own: writable.collect(), template };
        };
        let top = handed.top.clone();
        let (own, shared): (Vec<PathBuf>, Vec<PathBuf>) = read.iter().cloned().partition(|path| path.starts_with(&top));
        let own = own.into_iter().map(|path| (path, SAFE_READ)).chain(writable).collect();
        let made_of = made_of(&top, &shared);
        let template = match handed.take(&made_of) {
            Ok(mounts) => Template::Made(mounts),
            Err(giver) => Template::ToMake(made_of, giver),
        };
        Self { place, top, shared, own, template }
    }

    /// Whether it begins in mounts that somebody else made, and needs none that come with its process.
    pub fn is_handed_on(&self) -> bool {
        matches!(self.template, Template::Made(_))
    }

    /// What is shown and is not there yet. Who goes in may be another user by then, whom the ways there are closed to.
    pub fn find(&self) -> Result<Pieces, Failure> {
        let found = |path: &PathBuf, attributes| Piece::find(path, attributes).transpose();
        let shared = if self.is_handed_on() { &[] } else { &self.shared[..] };
        Ok(Pieces {
            shared: shared.iter().filter_map(|path| found(path, SAFE_READ)).collect::<Result<_, _>>()?,
            own: self.own.iter().filter_map(|(path, attributes)| found(path, *attributes)).collect::<Result<_, _>>()?,
        })
    }

    /// Goes in.
    pub fn enter(&self, pieces: Pieces) -> Result<(), Failure> {
        let Pieces { shared, own } = pieces;
        match &self.template {
            Template::None => {
                self.begin(shared)?;
                self.finish(&self.place, own)?;
                self.change()
            }
            Template::Made(mounts) => {
                go_into(mounts.as_fd()).map_err(|error| failure("the mounts of all", error))?;
                copy_mounts()?;
                self.finish(Path::new("/"), own)
            }
            Template::ToMake(made_of, giver) => {
                let mounts = File::open("/proc/self/ns/mnt").map_err(|error| failure("/proc/self/ns/mnt", error))?;
                self.begin(shared)?;
                let top = place_of(&self.place, &self.top);
                fs::create_dir_all(&top).map_err(|error| failure(&self.top, error))?;
                make_readonly(&self.place)?;
                self.change()?;
                // Who may not go in by such a descriptor gives none.
                if go_into(mounts.as_fd()).is_ok() {
                    giver.give(made_of, mounts.as_fd());
                    copy_mounts()?;
                }
                self.finish(Path::new("/"), own)
            }
        }
    }

    /// What others may have as well.
    fn begin(&self, shared: Vec<Piece>) -> Result<(), Failure> {
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
            .map_err(|error| failure("making mounts private", error))?;
        mount_empty(&self.place)?;
        for piece in shared {
            piece.show(&self.place)?;
        }
        for device in DEVICES {
            let path = Path::new("/dev").join(device);
            let place = place_of(&self.place, &path);
            make_file(&place)?;
            mount_bind_recursive(&path, &place).map_err(|error| failure(&path, error))?;
        }
        self.link_streams()?;
        fs::create_dir(self.place.join("proc")).map_err(|error| failure("/proc", error))
    }

    /// What is its own. `base` is the root, or will be.
    fn finish(&self, base: &Path, own: Vec<Piece>) -> Result<(), Failure> {
        if !matches!(self.template, Template::None) {
            mount_empty(&self.top)?;
        }
        for piece in own {
            piece.show(base)?;
        }
        mount_proc(base)?;
        make_readonly(&place_of(base, &self.top))
    }

    fn change(&self) -> Result<(), Failure> {
        chdir(&self.place).map_err(|error| failure("root", error))?;
        pivot_root(".", ".").map_err(|error| failure("pivot_root", error))?;
        unmount(".", UnmountFlags::DETACH).map_err(|error| failure("the old root", error))?;
        chdir("/").map_err(|error| failure("/", error))
    }

    /// Names that shells and programs use for their own streams.
    fn link_streams(&self) -> Result<(), Failure> {
        for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
            let place = self.place.join("dev").join(name);
            symlink(format!("/proc/self/fd{target}"), place).map_err(|error| failure("/dev", error))?;
        }
        Ok(())
    }
}

/// All that is to be shown.
pub struct Pieces {
    shared: Vec<Piece>,
    own: Vec<Piece>,
}

/// Something that is listed, taken from where it is.
struct Piece {
    path: PathBuf,
    found: Found,
}

enum Found {
    /// With all that is mounted below; in no namespace yet.
    Folder(OwnedFd),
    File(OwnedFd),
    Link(PathBuf),
}

impl Piece {
    /// None where there is nothing, such as /lib64 on machines that have none. What was more restricted stays so.
    fn find(path: &Path, attributes: u64) -> Result<Option<Self>, Failure> {
        let Ok(about) = fs::symlink_metadata(path) else { return Ok(None) };
        let told = |error: io::Error| failure(path, error);
        let found = if about.is_symlink() {
            Found::Link(fs::read_link(path).map_err(told)?)
        } else {
            let tree = take_mounts(path, attributes).map_err(told)?;
            if about.is_dir() { Found::Folder(tree) } else { Found::File(tree) }
        };
        Ok(Some(Self { path: path.to_owned(), found }))
    }

    /// At the same path of another root.
    fn show(self, base: &Path) -> Result<(), Failure> {
        let place = place_of(base, &self.path);
        let tree = match self.found {
            Found::Link(target) => {
                make_parent(&place)?;
                return symlink(target, &place).map_err(|error| failure(&self.path, error));
            }
            Found::Folder(tree) => {
                fs::create_dir_all(&place).map_err(|error| failure(&self.path, error))?;
                tree
            }
            Found::File(tree) => {
                make_file(&place)?;
                tree
            }
        };
        let moved = move_mount(&tree, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
        moved.map_err(|error| failure(&self.path, error))
    }
}

/// Whether what is written, and what is read below `top`, can be shown there over what is shared.
fn has_layers(top: &Path, read: &[PathBuf], write: &[PathBuf]) -> bool {
    let is_below = |path: &PathBuf| path.starts_with(top) && path != top;
    let is_plain = |path: &PathBuf| !path.components().any(|part| part == Component::ParentDir);
    let is_ours = |path: &&str| Path::new(path).starts_with(top);
    !["/dev", "/proc"].iter().any(is_ours)
        && read.iter().chain(write).all(is_plain)
        && write.iter().all(is_below)
        && read.iter().all(|path| is_below(path) || !top.starts_with(path))
}

/// Tells one machine from another, and from itself when something else is there. A template has open what it shows, so
/// no number of a file is used again meanwhile.
fn made_of(top: &Path, shared: &[PathBuf]) -> Vec<u8> {
    let mut all = [top.as_os_str().as_bytes(), b"\0"].concat();
    let devices = DEVICES.iter().map(|name| Path::new("/dev").join(name));
    for path in shared.iter().cloned().chain(devices) {
        all.extend_from_slice(path.as_os_str().as_bytes());
        all.push(0);
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        if about.is_symlink() {
            all.extend_from_slice(fs::read_link(&path).unwrap_or_default().as_os_str().as_bytes());
            all.push(0);
        }
        for number in [about.dev(), about.ino(), u64::from(about.mode() & libc::S_IFMT)] {
            all.extend_from_slice(&number.to_ne_bytes());
        }
    }
    all
}

fn go_into(mounts: BorrowedFd<'_>) -> rustix::io::Result<()> {
    move_into_link_name_space(mounts, Some(LinkNameSpaceType::Mount))
}

fn copy_mounts() -> Result<(), Failure> {
    // SAFETY: descriptors stay as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(|error| failure("mounts of its own", error))
}

/// A copy of what is mounted there and of all that is mounted below, which hears of no later mount.
fn take_mounts(path: &Path, attributes: u64) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = open_tree(CWD, path, flags)?;
    let wanted = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    // SAFETY: the empty path ends with NUL, and the size is that of what is pointed to.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_RECURSIVE | libc::AT_EMPTY_PATH,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(tree) }
}

fn mount_empty(place: &Path) -> Result<(), Failure> {
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", place, "tmpfs", safe, Some(SIZE)).map_err(|error| failure("root", error))
}

fn make_readonly(place: &Path) -> Result<(), Failure> {
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    mount_remount(place, safe | MountFlags::RDONLY | MountFlags::BIND, c"")
        .map_err(|error| failure("root, read-only", error))
}

/// Of its own processes alone: it has a namespace of them. What is not its user's is not seen there: the keeper may be
/// the first of that namespace, and has the machine's mounts.
fn mount_proc(base: &Path) -> Result<(), Failure> {
    // Read-only: a user namespace of root's is still root where the kernel asks for its switches in /proc/sys.
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount("proc", base.join("proc"), "proc", safe, Some(HIDES_OTHERS)).map_err(|error| failure("/proc", error))
}

fn place_of(base: &Path, path: &Path) -> PathBuf {
    base.join(path.strip_prefix("/").unwrap_or(path))
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
