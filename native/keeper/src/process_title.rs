//! Command line that `ps` shows for a forked keeper: its run folder instead of the launcher's arguments.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PROGRAM: &[u8] = b"hosting-keeper\0";
/// Index of `arg_start` in `/proc/self/stat`, counted from the field after the program's name.
const ARG_START_FIELD: usize = 48 - 3;

/// Memory range of the command line arguments, which a forked process can overwrite. `None` if unknown.
pub struct ProcessTitle(Option<(usize, usize)>);

impl ProcessTitle {
    pub fn find() -> Self {
        Self(argument_range())
    }

    /// Replaces the arguments of this process with the run folder. Changes nothing if the folder's path does not fit.
    pub fn set(self, folder: &Path) {
        let Some((start, end)) = self.0 else { return };
        let title = [PROGRAM, folder.as_os_str().as_bytes()].concat();
        let Some(rest) = end.checked_sub(start).and_then(|room| room.checked_sub(title.len() + 1)) else { return };
        // SAFETY: the range belongs to this process, which has one thread and does not read its arguments again.
        unsafe {
            let place = std::ptr::with_exposed_provenance_mut::<u8>(start);
            std::ptr::copy_nonoverlapping(title.as_ptr(), place, title.len());
            std::ptr::write_bytes(place.add(title.len()), 0, rest + 1);
        }
    }
}

fn argument_range() -> Option<(usize, usize)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name may contain spaces and parentheses.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(ARG_START_FIELD);
    let (start, end): (usize, usize) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (start != 0).then_some((start, end))
}
