//! File system of a run's scratch folder. Its size bounds what the program can write.
//!
//! - An ext4 image on a loop device: a sparse copy of a template that the service has formatted. Needs root.
//! - A tmpfs. Its memory counts as memory of the program where a control group counts it.
//!
//! Both are mounted only in the mount namespace of the program. So the kernel removes the mount and the loop device
//! when the last process of the run ends, also after a kill.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, SeekFrom, Uid, chmodat, chownat, seek, unlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, move_mount,
};
use rustix::process::geteuid;

use super::exec_error::{ExecError, failure};
use crate::run_spec::ScratchSpec;

/// Image of the scratch folder, in the run folder.
const IMAGE: &str = "scratch.img";
const COPY_BYTES: usize = 64 << 10;
/// Attempts to configure a loop device. Another keeper can take a free one first.
const LOOP_ATTEMPTS: usize = 1_000;

const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
/// The kernel releases the device when its last user closes it.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_config` of `linux/loop.h`, with its `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

pub struct ScratchMount {
    path: PathBuf,
    bytes: u64,
    /// The mount. `None`: the child has to create a tmpfs, because only its user namespace allows that.
    mount: Option<OwnedFd>,
}

impl ScratchMount {
    /// Creates the file system, which belongs to `owner`.
    pub fn create(spec: &ScratchSpec, folder: &Path, owner: Option<(u32, u32)>) -> io::Result<Self> {
        let mount = match &spec.template {
            Some(template) => {
                let image = copy_template(template, &folder.join(IMAGE))?;
                Some(mount_image(&image)?)
            }
            None if geteuid().is_root() => Some(mount_memory(spec.bytes)?),
            None => None,
        };
        if let (Some(mount), Some((uid, gid))) = (&mount, owner) {
            chownat(mount, c"", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
        }
        Ok(Self { path: spec.path.clone(), bytes: spec.bytes, mount })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the mount, which is not attached to a path. Runs in the child.
    pub fn open(&self) -> Result<OwnedFd, ExecError> {
        let opened = match &self.mount {
            Some(mount) => mount.try_clone(),
            None => mount_memory(self.bytes),
        };
        opened.map_err(|error| failure(&self.path, error))
    }

    /// Attaches the mount to its path in the mount namespace of this process.
    pub fn attach(&self) -> Result<(), ExecError> {
        let mount = self.open()?;
        move_mount(&mount, "", CWD, &self.path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|error| failure(&self.path, error))
    }
}

/// Copies the parts of the template that have data. The rest of the image takes no space on the disk until it is used.
fn copy_template(template: &Path, image: &Path) -> io::Result<File> {
    let from = File::open(template).map_err(|error| with_name("scratch template", error))?;
    let to = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(image)?;
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut position = 0;
    while let Some(start) = next(&from, SeekFrom::Data(position))? {
        let end = next(&from, SeekFrom::Hole(start))?.unwrap_or(size);
        position = start;
        while position < end {
            let part = &mut buffer[..(end - position).min(COPY_BYTES as u64) as usize];
            from.read_exact_at(part, position)?;
            to.write_all_at(part, position)?;
            position += part.len() as u64;
        }
    }
    Ok(to)
}

fn next(file: &File, to: SeekFrom) -> io::Result<Option<u64>> {
    match seek(file, to) {
        Ok(position) => Ok(Some(position)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn mount_image(image: &File) -> io::Result<OwnedFd> {
    let (path, device) = attach_to_loop(image).map_err(|error| with_name("loop device", error))?;
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", &path)?;
    // The image does not outlive the run. Nothing has to survive a power failure.
    fsconfig_set_flag(context.as_fd(), "nobarrier")?;
    // Otherwise the kernel would write zeros into the image.
    fsconfig_set_flag(context.as_fd(), "noinit_itable")?;
    let mount = mount_of(&context)?;
    // The mount has the device open.
    drop(device);
    unlinkat(&mount, "lost+found", AtFlags::REMOVEDIR)?;
    chmodat(&mount, ".", Mode::RWXU, AtFlags::empty())?;
    Ok(mount)
}

fn mount_memory(bytes: u64) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "size", bytes.to_string())?;
    fsconfig_set_string(context.as_fd(), "mode", "700")?;
    mount_of(&context)
}

fn mount_of(context: &OwnedFd) -> io::Result<OwnedFd> {
    fsconfig_create(context.as_fd())?;
    let safe = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, safe)?)
}

fn attach_to_loop(image: &File) -> io::Result<(PathBuf, File)> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    (config.fd, config.block_size, config.flags) = (image.as_raw_fd() as u32, 4096, LO_FLAGS_AUTOCLEAR);
    for _ in 0..LOOP_ATTEMPTS {
        // SAFETY: a plain call without arguments.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(&path)?;
        // SAFETY: the structure has the layout of the kernel and outlives the call.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            return Ok((path, device));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

fn with_name(name: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}
