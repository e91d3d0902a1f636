//! Lines of the log from pieces of what a program writes.
//!
//! A line is `<microseconds> <stream> <text>`: stream `o` or `e`, in capitals where it goes on from the line of this
//! stream before, since a line of the program is cut at 4 KiB.

use std::io::Write;

const TEXT_MAX: usize = 4096;
const BATCH_BYTES: usize = 64 << 10;
/// No batch is longer: it is given on when it has this many bytes, at the end of a line.
pub const BATCH_BYTES_MOST: usize = BATCH_BYTES + TEXT_MAX + 32;

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// What has no end of line yet, and whole lines that nobody has yet.
#[derive(Default)]
pub struct Lines {
    open: [Line; 2],
    batch: Vec<u8>,
}

#[derive(Default)]
struct Line {
    text: Vec<u8>,
    goes_on: bool,
}

impl Lines {
    /// Takes a piece of a stream. Whole lines are given when it returns; who gets them leaves them or takes them away.
    pub fn take(&mut self, stream: Stream, mut piece: &[u8], now_us: u64, mut give: impl FnMut(&mut Vec<u8>)) {
        let mut stamp = [0; 20];
        let stamp = digits(now_us, &mut stamp);
        while !piece.is_empty() {
            let line = &mut self.open[stream as usize];
            let room = TEXT_MAX - line.text.len();
            let upto = &piece[..piece.len().min(room + 1)];
            match upto.iter().position(|&byte| byte == b'\n') {
                Some(at) => {
                    line.write(stream, stamp, &piece[..at], false, &mut self.batch);
                    piece = &piece[at + 1..];
                }
                None if piece.len() > room => {
                    line.write(stream, stamp, &piece[..room], true, &mut self.batch);
                    piece = &piece[room..];
                }
                None => {
                    line.text.extend_from_slice(piece);
                    piece = &[];
                }
            }
            if self.batch.len() >= BATCH_BYTES {
                give(&mut self.batch);
                self.batch.clear();
            }
        }
        self.give_rest(give);
    }

    /// What has no end of line by now never gets one.
    pub fn finish(&mut self, now_us: u64, give: impl FnMut(&mut Vec<u8>)) {
        let mut stamp = [0; 20];
        let stamp = digits(now_us, &mut stamp);
        for stream in [Stream::Out, Stream::Err] {
            let line = &mut self.open[stream as usize];
            if !line.text.is_empty() {
                line.write(stream, stamp, &[], false, &mut self.batch);
            }
        }
        self.give_rest(give);
    }

    fn give_rest(&mut self, mut give: impl FnMut(&mut Vec<u8>)) {
        if !self.batch.is_empty() {
            give(&mut self.batch);
            self.batch.clear();
        }
    }
}

impl Line {
    fn write(&mut self, stream: Stream, stamp: &[u8], rest: &[u8], goes_on: bool, to: &mut Vec<u8>) {
        let letter = match (stream, self.goes_on) {
            (Stream::Out, false) => b'o',
            (Stream::Out, true) => b'O',
            (Stream::Err, false) => b'e',
            (Stream::Err, true) => b'E',
        };
        for part in [stamp, &[b' ', letter, b' '], &self.text, rest, b"\n"] {
            to.extend_from_slice(part);
        }
        self.text.clear();
        self.goes_on = goes_on;
    }
}

fn digits(number: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut rest = &mut room[..];
    // Twenty digits are enough for every number.
    let _ = write!(rest, "{number}");
    let left = rest.len();
    &room[..20 - left]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Written {
        lines: Lines,
        text: Vec<u8>,
    }

    impl Written {
        fn take(&mut self, stream: Stream, piece: &[u8], now_us: u64) {
            let text = &mut self.text;
            self.lines.take(stream, piece, now_us, |batch| {
                assert!(batch.len() <= BATCH_BYTES_MOST && batch.ends_with(b"\n"));
                text.append(batch);
            });
        }

        fn finish(&mut self, now_us: u64) {
            let text = &mut self.text;
            self.lines.finish(now_us, |batch| text.append(batch));
        }

        fn text(&self) -> &str {
            std::str::from_utf8(&self.text).expect("text")
        }
    }

    #[test]
    fn lines_are_made_of_pieces_and_streams_do_not_mix() {
        let mut written = Written::default();
        written.take(Stream::Out, b"hel", 1);
        written.take(Stream::Err, b"oh\nwe", 2);
        written.take(Stream::Out, b"lo\n\nlast", 3);
        assert_eq!(written.text(), "2 e oh\n3 o hello\n3 o \n");
        written.finish(u64::MAX);
        let end = format!("{0} o last\n{0} e we\n", u64::MAX);
        assert_eq!(written.text(), format!("2 e oh\n3 o hello\n3 o \n{end}"));
        written.finish(5);
        assert!(written.text().ends_with(&end));
    }

    #[test]
    fn a_long_line_goes_on_in_the_next_and_one_that_just_fits_does_not() {
        for (length, cuts) in [(0, 1), (4095, 1), (4096, 1), (4097, 2), (8192, 2), (8193, 3)] {
            for piece_size in [1, 7, 4095, 4096, 4097, 100_000] {
                let mut written = Written::default();
                let line = [vec![b'x'; length], b"\nnext\n".to_vec()].concat();
                line.chunks(piece_size).for_each(|piece| written.take(Stream::Out, piece, 1));
                let lines: Vec<&str> = written.text().lines().collect();
                assert_eq!(lines.len(), cuts + 1, "{length} in pieces of {piece_size}");
                assert!(lines[0].starts_with("1 o "));
                assert!(lines[1..cuts].iter().all(|line| line.starts_with("1 O x")));
                assert_eq!(lines[cuts], "1 o next");
                assert_eq!(lines[..cuts].iter().map(|line| line.len() - 4).sum::<usize>(), length);
            }
        }
    }

    #[test]
    fn many_empty_lines_are_given_in_bounded_batches() {
        let mut written = Written::default();
        written.take(Stream::Err, &vec![b'\n'; 200_000], 1_700_000_000_000_000);
        assert_eq!(written.text().lines().filter(|line| *line == "1700000000000000 e ").count(), 200_000);
    }
}
