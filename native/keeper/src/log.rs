//! `log/`: what the program wrote, in segments that are named by the position of their first byte.
//!
//! A line is `<microseconds> <stream> <text>`: stream `o` or `e`, in capitals where it goes on from the line of this
//! stream before, since a line of the program is cut at 4 KiB. A position is the number of bytes before it in all
//! segments that ever were, so a reader needs one number. The program never waits for the disk: what it cannot take
//! is dropped, and a line says how much.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const TEXT_MAX: usize = 4096;
const SEGMENT_BYTES: u64 = 1 << 20;
const BATCH_BYTES: usize = 64 << 10;
/// A batch begins in a segment that is not full, and may end behind its end.
const SEGMENT_BYTES_MOST: u64 = SEGMENT_BYTES + 2 * BATCH_BYTES as u64;

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The segments, and what is not in one yet.
pub struct Log {
    folder: PathBuf,
    bytes_max: u64,
    segments: VecDeque<u64>,
    file: Option<File>,
    end: u64,
    lines: [Line; 2],
    batch: Vec<u8>,
    lost: u64,
}

#[derive(Default)]
struct Line {
    text: Vec<u8>,
    goes_on: bool,
}

impl Log {
    /// An empty one in this folder, which is made.
    pub fn create(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            bytes_max: bytes_max.max(2 * SEGMENT_BYTES_MOST),
            segments: VecDeque::new(),
            file: None,
            end: 0,
            lines: [Line::default(), Line::default()],
            batch: Vec::new(),
            lost: 0,
        })
    }

    /// Takes a piece of a stream. Whole lines are with the operating system when it returns.
    pub fn take(&mut self, stream: Stream, mut piece: &[u8], now_us: u64) {
        while !piece.is_empty() {
            let room = TEXT_MAX - self.lines[stream as usize].text.len();
            let upto = &piece[..piece.len().min(room + 1)];
            match upto.iter().position(|&byte| byte == b'\n') {
                Some(at) => {
                    self.lines[stream as usize].text.extend_from_slice(&piece[..at]);
                    self.finish_line(stream, now_us, false);
                    piece = &piece[at + 1..];
                }
                None => {
                    let taken = piece.len().min(room);
                    self.lines[stream as usize].text.extend_from_slice(&piece[..taken]);
                    piece = &piece[taken..];
                    if taken == room && !piece.is_empty() {
                        self.finish_line(stream, now_us, true);
                    }
                }
            }
        }
        self.write_batch();
    }

    /// What has no end of line by now never gets one.
    pub fn finish(&mut self, now_us: u64) {
        for stream in [Stream::Out, Stream::Err] {
            if !self.lines[stream as usize].text.is_empty() {
                self.finish_line(stream, now_us, false);
            }
        }
        self.write_batch();
        if self.lost > 0 {
            self.tell_lost(now_us);
        }
    }

    /// Position behind the last line.
    pub fn end(&self) -> u64 {
        self.end
    }

    fn finish_line(&mut self, stream: Stream, now_us: u64, goes_on: bool) {
        let line = &mut self.lines[stream as usize];
        let letter = match (stream, line.goes_on) {
            (Stream::Out, false) => 'o',
            (Stream::Out, true) => 'O',
            (Stream::Err, false) => 'e',
            (Stream::Err, true) => 'E',
        };
        let _ = write!(self.batch, "{now_us} {letter} ");
        self.batch.extend_from_slice(&line.text);
        self.batch.push(b'\n');
        line.text.clear();
        line.goes_on = goes_on;
        if self.batch.len() >= BATCH_BYTES {
            self.write_batch();
        }
    }

    fn write_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.lost > 0 {
            self.tell_lost(crate::times::wall_us());
        }
        let batch = std::mem::take(&mut self.batch);
        if self.append(&batch).is_err() {
            self.lost += batch.iter().filter(|&&byte| byte == b'\n').count() as u64;
        }
        self.batch = batch;
        self.batch.clear();
        self.batch.shrink_to(TEXT_MAX);
    }

    fn tell_lost(&mut self, now_us: u64) {
        let line = format!("{now_us} e [{} lines lost: the disk took no more]\n", self.lost);
        if self.append(line.as_bytes()).is_ok() {
            self.lost = 0;
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let is_full = self.segments.back().is_none_or(|&start| self.end - start >= SEGMENT_BYTES);
        if is_full || self.file.is_none() {
            self.begin_segment()?;
        }
        let Some(file) = self.file.as_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        let start = self.segments.back().copied().unwrap_or_default();
        if let Err(error) = file.write_all(bytes) {
            // Whatever part of it is there goes, so that readers find whole lines and positions stay true.
            file.set_len(self.end - start)?;
            return Err(error);
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let path = self.path_of(self.end);
        self.file = Some(OpenOptions::new().append(true).create(true).open(path)?);
        if self.segments.back() != Some(&self.end) {
            self.segments.push_back(self.end);
        }
        while self.segments.len() > 1 && self.end - self.segments[0] + SEGMENT_BYTES_MOST > self.bytes_max {
            let Some(oldest) = self.segments.pop_front() else { break };
            let _ = fs::remove_file(self.path_of(oldest));
        }
        Ok(())
    }

    fn path_of(&self, start: u64) -> PathBuf {
        self.folder.join(format!("{start:020}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(folder: &Path) -> String {
        let mut names: Vec<_> = fs::read_dir(folder).expect("folder").map(|one| one.expect("entry").path()).collect();
        names.sort();
        names.iter().map(|path| fs::read_to_string(path).expect("text")).collect()
    }

    #[test]
    fn lines_are_made_of_pieces_and_streams_do_not_mix() {
        let folder = tempfile::tempdir().expect("folder");
        let mut log = Log::create(folder.path(), 1 << 30).expect("log");
        log.take(Stream::Out, b"hel", 1);
        log.take(Stream::Err, b"oh\nwe", 2);
        log.take(Stream::Out, b"lo\n\nlast", 3);
        assert_eq!(content(folder.path()), "2 e oh\n3 o hello\n3 o \n");
        log.finish(4);
        assert_eq!(content(folder.path()), "2 e oh\n3 o hello\n3 o \n4 o last\n4 e we\n");
        assert_eq!(log.end(), content(folder.path()).len() as u64);
    }

    #[test]
    fn a_long_line_goes_on_in_the_next_and_one_that_just_fits_does_not() {
        for (length, cuts) in [(4095, 1), (4096, 1), (4097, 2), (8192, 2), (8193, 3)] {
            for piece_size in [1, 7, 4096, 100_000] {
                let folder = tempfile::tempdir().expect("folder");
                let mut log = Log::create(folder.path(), 1 << 30).expect("log");
                let line = [vec![b'x'; length], b"\nnext\n".to_vec()].concat();
                line.chunks(piece_size).for_each(|piece| log.take(Stream::Out, piece, 1));
                let content = content(folder.path());
                let lines: Vec<&str> = content.lines().collect();
                assert_eq!(lines.len(), cuts + 1, "{length} in pieces of {piece_size}");
                assert!(lines[0].starts_with("1 o x"));
                assert!(lines[1..cuts].iter().all(|line| line.starts_with("1 O x")));
                assert_eq!(lines[cuts], "1 o next");
                assert_eq!(lines[..cuts].iter().map(|line| line.len() - 4).sum::<usize>(), length);
            }
        }
    }

    #[test]
    fn the_oldest_segments_go_and_positions_stay() {
        let folder = tempfile::tempdir().expect("folder");
        let mut log = Log::create(folder.path(), 4 << 20).expect("log");
        let line = [vec![b'y'; 1000], b"\n".to_vec()].concat();
        for _ in 0..20_000 {
            log.take(Stream::Out, &line, 5);
        }
        let mut sizes: Vec<(u64, u64)> = fs::read_dir(folder.path())
            .expect("folder")
            .map(|one| one.expect("entry"))
            .map(|one| {
                (one.file_name().to_string_lossy().parse().expect("a position"), one.metadata().expect("size").len())
            })
            .collect();
        sizes.sort_unstable();
        assert!(sizes.iter().map(|(_, size)| size).sum::<u64>() <= 4 << 20);
        assert!(sizes.len() >= 3);
        assert!(sizes.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0));
        assert_eq!(sizes.last().map(|(start, size)| start + size), Some(log.end()));
    }

    #[test]
    fn what_the_disk_does_not_take_is_counted_and_told() {
        let folder = tempfile::tempdir().expect("folder");
        let logs = folder.path().join("log");
        let mut log = Log::create(&logs, 1 << 30).expect("log");
        fs::remove_dir(&logs).expect("gone");
        log.take(Stream::Out, b"one\ntwo\n", 1);
        fs::create_dir(&logs).expect("back");
        log.take(Stream::Out, b"three\n", 2);
        let content = content(&logs);
        let lines: Vec<&str> = content.lines().collect();
        assert!(lines[0].ends_with("e [2 lines lost: the disk took no more]"), "{content}");
        assert_eq!(lines[1..], ["2 o three"]);
    }
}
