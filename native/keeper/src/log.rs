//! `log/`: lines in segments that are named by the position of their first byte.
//!
//! A position is the number of bytes before it in all segments that ever were, so a reader needs one number. What the
//! disk does not take is counted, and a line says how much was lost as soon as it takes one; likewise what is left out
//! below the reserve.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::reserve::Reserve;

const SEGMENT_BYTES: u64 = 1 << 20;
/// What is written at once is not longer.
pub const WRITE_BYTES_MAX: usize = 128 << 10;
/// A write begins in a segment that is not full, and may end behind its end.
const SEGMENT_BYTES_MOST: u64 = SEGMENT_BYTES + WRITE_BYTES_MAX as u64;
/// A line of ours is not longer.
const LINE_BYTES: usize = 128;

/// The segments of a run.
pub struct Log {
    folder: PathBuf,
    bytes_max: u64,
    segments: VecDeque<u64>,
    file: Option<File>,
    end: u64,
    lost: u64,
    reserve: Reserve,
    left_out: u64,
}

impl Log {
    /// An empty one, in a folder that is made with the first line. It stops where so much of the disk is free.
    pub fn new(folder: PathBuf, bytes_max: u64, reserve: Reserve) -> Self {
        Self {
            folder,
            bytes_max: bytes_max.max(2 * SEGMENT_BYTES_MOST),
            segments: VecDeque::new(),
            file: None,
            end: 0,
            lost: 0,
            reserve,
            left_out: 0,
        }
    }

    /// Writes whole lines, as many of them as the disk takes.
    pub fn write(&mut self, lines: &[u8], now_us: u64) {
        self.tell_lost(now_us);
        if lines.is_empty() {
            return;
        }
        if !self.reserve.has_room_for(lines.len()) {
            self.left_out += count(lines);
            return;
        }
        let taken = self.append(lines);
        self.lose(count(&lines[taken..]));
    }

    /// So many lines never came here.
    pub fn lose(&mut self, lines: u64) {
        self.lost += lines;
    }

    /// Whether there is something that the log does not tell yet.
    pub fn has_lost(&self) -> bool {
        self.lost > 0 || self.left_out > 0
    }

    /// Tells how many lines are not there, if the disk takes that.
    pub fn tell_lost(&mut self, now_us: u64) {
        if self.left_out > 0 && self.reserve.has_room_for(LINE_BYTES) {
            self.tell_left_out(now_us);
        }
        if self.lost > 0 {
            let line = format!("{now_us} e [{} lines lost: the disk took no more]\n", self.lost);
            if self.append(line.as_bytes()) == line.len() {
                self.lost = 0;
            }
        }
    }

    /// Tells how many were left out, below the reserve as well: at the end nobody else would.
    pub fn tell_left_out(&mut self, now_us: u64) {
        if self.left_out > 0 {
            let line = format!("{now_us} e [{} lines left out for want of disk space]\n", self.left_out);
            if self.append(line.as_bytes()) == line.len() {
                self.left_out = 0;
            }
        }
    }

    /// Position behind the last line.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// How many bytes of these lines are there now: whole lines only.
    fn append(&mut self, lines: &[u8]) -> usize {
        let is_full = self.segments.back().is_none_or(|&start| self.end - start >= SEGMENT_BYTES);
        if (is_full || self.file.is_none()) && self.begin_segment().is_err() {
            return 0;
        }
        let Some(file) = self.file.as_mut() else { return 0 };
        let mut written = 0;
        while written < lines.len() {
            match file.write(&lines[written..]) {
                Ok(count @ 1..) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        let whole = lines[..written].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        self.end += whole as u64;
        if whole < written {
            // Half a line goes, so that readers find whole lines and positions stay true.
            let start = self.segments.back().copied().unwrap_or_default();
            if file.set_len(self.end - start).is_err() {
                self.end += (written - whole) as u64;
                self.file = None;
            }
        }
        whole
    }

    /// The oldest go first: a disk that is full has room then.
    fn begin_segment(&mut self) -> io::Result<()> {
        while self.segments.front().is_some_and(|first| self.end - first + SEGMENT_BYTES_MOST > self.bytes_max) {
            let Some(oldest) = self.segments.pop_front() else { break };
            let _ = fs::remove_file(self.path_of(oldest));
        }
        self.file = None;
        let path = self.path_of(self.end);
        let open = || OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        let file = match open() {
            // It is the first, or somebody has tidied up.
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_folder(&self.folder).and_then(|()| open()),
            other => other,
        };
        self.file = Some(file?);
        if self.segments.back() != Some(&self.end) {
            self.segments.push_back(self.end);
        }
        Ok(())
    }

    fn path_of(&self, start: u64) -> PathBuf {
        self.folder.join(format!("{start:020}"))
    }
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|&&byte| byte == b'\n').count() as u64
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_in(folder: &Path, bytes_max: u64) -> Log {
        Log::new(folder.to_owned(), bytes_max, Reserve::new(folder.to_owned(), 0))
    }

    fn segments(folder: &Path) -> Vec<(u64, String)> {
        let entries = fs::read_dir(folder).expect("folder").map(|one| one.expect("entry"));
        let mut all: Vec<_> = entries
            .map(|one| {
                let start = one.file_name().to_string_lossy().parse().expect("a position");
                (start, fs::read_to_string(one.path()).expect("text"))
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn the_oldest_segments_go_and_positions_stay() {
        let folder = tempfile::tempdir().expect("folder");
        let mut log = log_in(folder.path(), 4 << 20);
        let line = [vec![b'y'; 999], b"\n".to_vec()].concat();
        let lines = line.repeat(131);
        assert!(lines.len() <= WRITE_BYTES_MAX);
        for _ in 0..160 {
            log.write(&lines, 5);
        }
        let segments = segments(folder.path());
        let sizes: Vec<u64> = segments.iter().map(|(_, text)| text.len() as u64).collect();
        assert!(sizes.iter().sum::<u64>() <= 4 << 20);
        assert!(sizes.iter().all(|&size| size <= SEGMENT_BYTES_MOST));
        assert!(segments.len() >= 3);
        assert!(segments.windows(2).zip(&sizes).all(|(pair, size)| pair[0].0 + size == pair[1].0));
        assert_eq!(log.end(), 160 * 131_000);
        assert_eq!(segments.last().map(|(start, text)| start + text.len() as u64), Some(log.end()));
    }

    #[test]
    fn what_the_disk_does_not_take_is_counted_and_told() {
        let folder = tempfile::tempdir().expect("folder");
        let logs = folder.path().join("log");
        let mut log = log_in(&logs, 1 << 30);
        fs::write(&logs, "").expect("in the way");
        log.write(b"1 o one\n1 o two\n", 1);
        log.lose(3);
        assert!(log.has_lost());
        fs::remove_file(&logs).expect("out of the way");
        log.write(b"2 o three\n", 2);
        assert!(!log.has_lost());
        let told = "2 e [5 lines lost: the disk took no more]\n2 o three\n";
        assert_eq!(segments(&logs), [(0, told.to_owned())]);
        assert_eq!(log.end(), told.len() as u64);
    }
}
