//! `log/`: folder of log segments. The name of a segment is the position of its first byte.
//!
//! A position counts all log bytes before it, including those of removed segments. Lines are lost if the disk fails or
//! is too slow, and omitted to keep the disk reserve. A log line reports their number.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::statvfs;

use crate::clock::now;

const SEGMENT_BYTES: u64 = 1 << 20;
pub const WRITE_BYTES_MAX: usize = 128 << 10;
/// Maximum length of a segment. The last write begins before `SEGMENT_BYTES` and can end after it.
const SEGMENT_BYTES_MAX: u64 = SEGMENT_BYTES + WRITE_BYTES_MAX as u64;
const LOSS_LINE_BYTES: usize = 128;
const UNCHECKED_BYTES_MAX: usize = WRITE_BYTES_MAX;
const FREE_SPACE_POLL_INTERVAL: Duration = Duration::from_secs(1);

pub struct SegmentedLog {
    folder: PathBuf,
    bytes_max: u64,
    segments: VecDeque<u64>,
    file: Option<File>,
    end: u64,
    lost_lines: u64,
    reserve: DiskReserve,
    omitted_lines: u64,
}

impl SegmentedLog {
    pub fn new(folder: PathBuf, bytes_max: u64, reserve: DiskReserve) -> Self {
        Self {
            folder,
            bytes_max: bytes_max.max(2 * SEGMENT_BYTES_MAX),
            segments: VecDeque::new(),
            file: None,
            end: 0,
            lost_lines: 0,
            reserve,
            omitted_lines: 0,
        }
    }

    pub fn write(&mut self, lines: &[u8], now_us: u64) {
        self.report_lost_lines(now_us);
        if lines.is_empty() {
            return;
        }
        if !self.reserve.has_room_for(lines.len()) {
            self.omitted_lines += line_count(lines);
            return;
        }
        let written = self.append(lines);
        self.add_lost_lines(line_count(&lines[written..]));
    }

    pub fn add_lost_lines(&mut self, lines: u64) {
        self.lost_lines += lines;
    }

    pub fn has_unreported_loss(&self) -> bool {
        self.lost_lines > 0 || self.omitted_lines > 0
    }

    pub fn report_lost_lines(&mut self, now_us: u64) {
        if self.omitted_lines > 0 && self.reserve.has_room_for(LOSS_LINE_BYTES) {
            self.report_omitted_lines(now_us);
        }
        if self.lost_lines > 0 {
            let line = format!("{now_us} e [{} lines lost: the disk did not accept them]\n", self.lost_lines);
            if self.append(line.as_bytes()) == line.len() {
                self.lost_lines = 0;
            }
        }
    }

    /// Logs how many lines were omitted to keep the disk reserve, even if this log line uses the reserve.
    pub fn report_omitted_lines(&mut self, now_us: u64) {
        if self.omitted_lines > 0 {
            let line = format!("{now_us} e [{} lines omitted: not enough disk space]\n", self.omitted_lines);
            if self.append(line.as_bytes()) == line.len() {
                self.omitted_lines = 0;
            }
        }
    }

    pub fn end(&self) -> u64 {
        self.end
    }

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
            // Removes half a line.
            let start = self.segments.back().copied().unwrap_or_default();
            if file.set_len(self.end - start).is_err() {
                self.end += (written - whole) as u64;
                self.file = None;
            }
        }
        whole
    }

    /// Starts a new segment. Before, removes the oldest segments if the log would exceed its maximum size.
    fn begin_segment(&mut self) -> io::Result<()> {
        while self.segments.front().is_some_and(|first| self.end - first + SEGMENT_BYTES_MAX > self.bytes_max) {
            let Some(oldest) = self.segments.pop_front() else { break };
            let _ = fs::remove_file(self.path_of(oldest));
        }
        self.file = None;
        let path = self.path_of(self.end);
        let open = || OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        let file = match open() {
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

/// Disk space that log lines must leave free.
///
/// During output, the free space is checked once per second and after every `UNCHECKED_BYTES_MAX` bytes.
pub struct DiskReserve {
    folder: PathBuf,
    bytes: u64,
    polled_at: Option<Duration>,
    unchecked_bytes: usize,
    is_reached: bool,
}

impl DiskReserve {
    pub fn new(folder: PathBuf, bytes: u64) -> Self {
        Self { folder, bytes, polled_at: None, unchecked_bytes: 0, is_reached: false }
    }

    fn has_room_for(&mut self, bytes: usize) -> bool {
        if self.bytes == 0 {
            return true;
        }
        let is_recent = self.polled_at.is_some_and(|at| now() < at + FREE_SPACE_POLL_INTERVAL);
        if !is_recent || !self.is_reached && self.unchecked_bytes < bytes {
            self.polled_at = Some(now());
            self.unchecked_bytes = UNCHECKED_BYTES_MAX;
            // If the call fails, the write itself reports a full disk.
            self.is_reached =
                statvfs(&self.folder).is_ok_and(|disk| disk.f_bavail.saturating_mul(disk.f_frsize) < self.bytes);
        }
        self.unchecked_bytes = self.unchecked_bytes.saturating_sub(bytes);
        !self.is_reached
    }
}

fn line_count(lines: &[u8]) -> u64 {
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

    fn log_in(folder: &Path, bytes_max: u64) -> SegmentedLog {
        SegmentedLog::new(folder.to_owned(), bytes_max, DiskReserve::new(folder.to_owned(), 0))
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
    fn oldest_segments_are_removed_and_positions_stay() {
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
        assert!(sizes.iter().all(|&size| size <= SEGMENT_BYTES_MAX));
        assert!(segments.len() >= 3);
        assert!(segments.windows(2).zip(&sizes).all(|(pair, size)| pair[0].0 + size == pair[1].0));
        assert_eq!(log.end(), 160 * 131_000);
        assert_eq!(segments.last().map(|(start, text)| start + text.len() as u64), Some(log.end()));
    }

    #[test]
    fn lines_that_the_disk_does_not_take_are_counted_and_reported() {
        let folder = tempfile::tempdir().expect("folder");
        let logs = folder.path().join("log");
        let mut log = log_in(&logs, 1 << 30);
        fs::write(&logs, "").expect("in the way");
        log.write(b"1 o one\n1 o two\n", 1);
        log.add_lost_lines(3);
        assert!(log.has_unreported_loss());
        fs::remove_file(&logs).expect("out of the way");
        log.write(b"2 o three\n", 2);
        assert!(!log.has_unreported_loss());
        let expected = "2 e [5 lines lost: the disk did not accept them]\n2 o three\n";
        assert_eq!(segments(&logs), [(0, expected.to_owned())]);
        assert_eq!(log.end(), expected.len() as u64);
    }
}
