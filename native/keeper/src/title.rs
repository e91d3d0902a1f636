//! What a list of processes shows of a keeper that was forked: its folder, in place of what the nursery was called with.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PROGRAM: &[u8] = b"hosting-keeper\0";
/// Of the fields behind the name of the program in `/proc/self/stat`, which begins with the third.
const ARGUMENTS_START: usize = 48 - 3;

/// Where the words are that this process was called with; those that it forks have theirs there too.
pub struct Title(Option<(usize, usize)>);

impl Title {
    /// Asks the kernel, which may not tell.
    pub fn find() -> Self {
        Self(arguments())
    }

    /// As if it had been called with this folder. Where there is no room for it, or the kernel tells no place, nothing
    /// is changed.
    pub fn set(self, folder: &Path) {
        let Some((start, end)) = self.0 else { return };
        let title = [PROGRAM, folder.as_os_str().as_bytes()].concat();
        let Some(rest) = end.checked_sub(start).and_then(|room| room.checked_sub(title.len() + 1)) else { return };
        // SAFETY: these are the words that this process was called with, which are its own to change, and nobody reads
        // them meanwhile: it has one thread and does not ask for its arguments any more.
        unsafe {
            let place = std::ptr::with_exposed_provenance_mut::<u8>(start);
            std::ptr::copy_nonoverlapping(title.as_ptr(), place, title.len());
            std::ptr::write_bytes(place.add(title.len()), 0, rest + 1);
        }
    }
}

fn arguments() -> Option<(usize, usize)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // A name may have anything in it.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(ARGUMENTS_START);
    let (start, end): (usize, usize) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (start != 0).then_some((start, end))
}
