//! Host values: CPU time, memory, file system and sync time.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crate::measurement::Measurement;
use crate::{Failure, failure};

pub fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the value outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn resident_and_peak_bytes() -> Result<(u64, u64), Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> Result<u64, Failure> {
        let line = status.lines().find(|line| line.starts_with(name)).ok_or_else(|| failure(name))?;
        let number = line.split_whitespace().nth(1).ok_or_else(|| failure(line))?;
        Ok(number.parse::<u64>()? * 1024)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

/// Returns the file system name of a folder. Rejects memory file systems, where a sync costs nothing.
pub fn file_system(folder: &Path) -> Result<&'static str, Failure> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: an all-zero value is valid, and the call fills it or fails.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: path and result outlive the call.
    if unsafe { libc::statfs(path.as_ptr(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    match stat.f_type as u64 {
        0x0102_1994 | 0x8584_58f6 => {
            Err(failure(format!("{} is in memory: a sync costs nothing there", folder.display())))
        }
        0xef53 => Ok("ext4"),
        0x5846_5342 => Ok("xfs"),
        0x9123_683e => Ok("btrfs"),
        0x794c_7630 => Ok("overlayfs"),
        _ => Ok("another"),
    }
}

/// Creates a file with written blocks, so that later syncs change no metadata.
pub fn create_prewritten_file(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let zeros = vec![0; 1 << 20];
    for offset in (0..bytes).step_by(zeros.len()) {
        file.write_all_at(&zeros, offset)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// Returns the file system of a folder, and the median time to write and sync one block.
pub fn measure_disk(folder: &Path) -> Result<Measurement, Failure> {
    const SYNCS: usize = 300;
    let name = file_system(folder)?;
    let path = folder.join("sync-probe");
    let file = create_prewritten_file(&path, 4 << 20)?;
    let mut times_ns: Vec<u64> = Vec::with_capacity(SYNCS);
    for block in 0..SYNCS {
        file.write_all_at(&[1; 4096], block as u64 * 4096)?;
        let started = Instant::now();
        file.sync_data()?;
        times_ns.push(started.elapsed().as_nanos() as u64);
    }
    std::fs::remove_file(&path)?;
    times_ns.sort_unstable();
    Ok(Measurement::new().text("file_system", name).number("fdatasync_us", times_ns[SYNCS / 2] as f64 / 1e3))
}

pub fn evict_pages(path: &Path) -> Result<(), Failure> {
    let file = File::open(path)?;
    // SAFETY: plain call on an open descriptor.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error).into()),
    }
}

pub fn load_pages(path: &Path) -> Result<u64, Failure> {
    Ok(io::copy(&mut File::open(path)?, &mut io::sink())?)
}

const PAGE: usize = 4096;

pub fn page_aligned_bytes(path: &Path) -> Result<u64, Failure> {
    Ok(std::fs::metadata(path)?.len().next_multiple_of(PAGE as u64))
}

pub fn cached_bytes(path: &Path) -> Result<u64, Failure> {
    let file = File::open(path)?;
    let length = file.metadata()?.len() as usize;
    if length == 0 {
        return Ok(0);
    }
    let mut pages = vec![0_u8; length.div_ceil(PAGE)];
    // SAFETY: a private read-only mapping of a whole file, unmapped below; mincore fills one byte per page.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let result = libc::mincore(map, length, pages.as_mut_ptr());
        libc::munmap(map, length);
        if result != 0 {
            return Err(io::Error::last_os_error().into());
        }
    }
    Ok(pages.iter().filter(|page| **page & 1 == 1).count() as u64 * PAGE as u64)
}
