//! Log lines, made from chunks of the program's output.
//!
//! A log line is `<microseconds> <stream> <text>`. The stream is `o` for standard output, `e` for standard error, or `s`
//! for a line of the service. A text longer than 4 KiB is split, and a capital letter marks each continuation. A split never cuts a UTF-8 character:
//! it is up to three bytes earlier instead.

use std::io::Write;

const TEXT_MAX: usize = 4096;
const BATCH_BYTES: usize = 64 << 10;
pub const BATCH_BYTES_MAX: usize = BATCH_BYTES + TEXT_MAX + 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Out,
    Err,
}

#[derive(Default)]
pub struct LineSplitter {
    partial_lines: [PartialLine; 2],
    batch: Vec<u8>,
}

#[derive(Default)]
struct PartialLine {
    text: Vec<u8>,
    is_continuation: bool,
    /// True if the beginning of the line was dropped.
    is_dropped: bool,
}

impl LineSplitter {
    /// Drops a chunk, the line that ends in it, and the line that begins in it. Returns the number of dropped bytes.
    pub fn drop_chunk(&mut self, stream: OutputStream, chunk: &[u8]) -> usize {
        let line = &mut self.partial_lines[stream as usize];
        let bytes = line.text.len() + chunk.len();
        *line = PartialLine { is_dropped: !chunk.ends_with(b"\n"), ..PartialLine::default() };
        bytes
    }

    /// Returns the number of bytes at the beginning of a chunk that belong to a dropped line.
    pub fn dropped_beginning(&mut self, stream: OutputStream, chunk: &[u8]) -> usize {
        let line = &mut self.partial_lines[stream as usize];
        if !line.is_dropped {
            return 0;
        }
        let end = chunk.iter().position(|&byte| byte == b'\n');
        line.is_dropped = end.is_none();
        end.map_or(chunk.len(), |at| at + 1)
    }

    pub fn take(
        &mut self,
        stream: OutputStream,
        mut chunk: &[u8],
        now_us: u64,
        mut write_batch: impl FnMut(&mut Vec<u8>),
    ) {
        let mut timestamp = [0; 20];
        let timestamp = digits(now_us, &mut timestamp);
        while !chunk.is_empty() {
            let line = &mut self.partial_lines[stream as usize];
            let space = TEXT_MAX - line.text.len();
            let search_range = &chunk[..chunk.len().min(space + 1)];
            match search_range.iter().position(|&byte| byte == b'\n') {
                Some(at) => {
                    line.write(stream, timestamp, &chunk[..at], false, &mut self.batch);
                    chunk = &chunk[at + 1..];
                }
                None if chunk.len() > space => {
                    let length_taken = line.cut(stream, timestamp, chunk, &mut self.batch);
                    chunk = &chunk[length_taken..];
                }
                None => {
                    line.text.extend_from_slice(chunk);
                    chunk = &[];
                }
            }
            if self.batch.len() >= BATCH_BYTES {
                write_batch(&mut self.batch);
                self.batch.clear();
            }
        }
        self.flush_batch(write_batch);
    }

    pub fn finish(&mut self, now_us: u64, write_batch: impl FnMut(&mut Vec<u8>)) {
        let mut timestamp = [0; 20];
        let timestamp = digits(now_us, &mut timestamp);
        for stream in [OutputStream::Out, OutputStream::Err] {
            let line = &mut self.partial_lines[stream as usize];
            if !line.text.is_empty() {
                line.write(stream, timestamp, &[], false, &mut self.batch);
            }
        }
        self.flush_batch(write_batch);
    }

    fn flush_batch(&mut self, mut write_batch: impl FnMut(&mut Vec<u8>)) {
        if !self.batch.is_empty() {
            write_batch(&mut self.batch);
            self.batch.clear();
        }
    }
}

impl PartialLine {
    fn write(
        &mut self,
        stream: OutputStream,
        timestamp: &[u8],
        remainder: &[u8],
        is_continuation: bool,
        to: &mut Vec<u8>,
    ) {
        let letter = match (stream, self.is_continuation) {
            (OutputStream::Out, false) => b'o',
            (OutputStream::Out, true) => b'O',
            (OutputStream::Err, false) => b'e',
            (OutputStream::Err, true) => b'E',
        };
        for part in [timestamp, &[b' ', letter, b' '], &self.text, remainder, b"\n"] {
            to.extend_from_slice(part);
        }
        self.text.clear();
        self.is_continuation = is_continuation;
    }

    /// Writes the first part of a line that is too long. Returns the number of bytes that it took from `chunk`.
    fn cut(&mut self, stream: OutputStream, timestamp: &[u8], chunk: &[u8], to: &mut Vec<u8>) -> usize {
        let space = TEXT_MAX - self.text.len();
        let cut_window = std::array::from_fn(|at| match (space + at).checked_sub(CUT_WINDOW - 1) {
            Some(at) => chunk[at],
            None => self.text[TEXT_MAX + at - (CUT_WINDOW - 1)],
        });
        let length = TEXT_MAX - partial_character_bytes(cut_window);
        let moved_text = self.text.split_off(length.min(self.text.len()));
        let length_taken = length - self.text.len();
        self.write(stream, timestamp, &chunk[..length_taken], true, to);
        self.text.extend_from_slice(&moved_text);
        length_taken
    }
}

const CUT_WINDOW: usize = 4;

/// Returns how many bytes before a cut belong to the same UTF-8 character as the byte after the cut.
///
/// `cut_window` has three bytes before the cut and one after it. An incomplete character counts too, because decoders
/// replace it as a whole.
fn partial_character_bytes(cut_window: [u8; CUT_WINDOW]) -> usize {
    let is_continuation = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    let last = CUT_WINDOW - 1;
    if !is_continuation(cut_window[last]) {
        return 0;
    }
    let Some(first) = cut_window.iter().rposition(|&byte| !is_continuation(byte)) else { return 0 };
    let is_one_character = match std::str::from_utf8(&cut_window[first..]) {
        Ok(_) => true,
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    };
    if is_one_character { last - first } else { 0 }
}

fn digits(number: u64, space: &mut [u8; 20]) -> &[u8] {
    let mut remainder = &mut space[..];
    let _ = write!(remainder, "{number}");
    let unused = remainder.len();
    &space[..20 - unused]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct LineCollector {
        lines: LineSplitter,
        text: Vec<u8>,
    }

    impl LineCollector {
        fn take(&mut self, stream: OutputStream, chunk: &[u8], now_us: u64) {
            let text = &mut self.text;
            self.lines.take(stream, chunk, now_us, |batch| {
                assert!(batch.len() <= BATCH_BYTES_MAX && batch.ends_with(b"\n"));
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
    fn chunks_become_lines_for_each_stream() {
        let mut collector = LineCollector::default();
        collector.take(OutputStream::Out, b"hel", 1);
        collector.take(OutputStream::Err, b"oh\nwe", 2);
        collector.take(OutputStream::Out, b"lo\n\nlast", 3);
        assert_eq!(collector.text(), "2 e oh\n3 o hello\n3 o \n");
        collector.finish(u64::MAX);
        let end = format!("{0} o last\n{0} e we\n", u64::MAX);
        assert_eq!(collector.text(), format!("2 e oh\n3 o hello\n3 o \n{end}"));
        collector.finish(5);
        assert!(collector.text().ends_with(&end));
    }

    #[test]
    fn dropped_chunks_leave_only_whole_lines() {
        let mut collector = LineCollector::default();
        collector.take(OutputStream::Out, b"one\nbeg", 1);
        assert_eq!(collector.lines.drop_chunk(OutputStream::Out, b"inning\ntwo\nth"), 16);
        assert_eq!(collector.lines.dropped_beginning(OutputStream::Out, b"re"), 2);
        assert_eq!(collector.lines.dropped_beginning(OutputStream::Err, b"other"), 0);
        assert_eq!(collector.lines.dropped_beginning(OutputStream::Out, b"e\nfour\n"), 2);
        collector.take(OutputStream::Out, b"four\n", 2);
        assert_eq!(collector.lines.drop_chunk(OutputStream::Out, b"five\n"), 5);
        assert_eq!(collector.lines.dropped_beginning(OutputStream::Out, b"six\n"), 0);
        assert_eq!(collector.text(), "1 o one\n2 o four\n");
    }

    #[test]
    fn long_lines_are_split_exactly_at_the_limit() {
        for (length, cuts) in [(0, 1), (4095, 1), (4096, 1), (4097, 2), (8192, 2), (8193, 3)] {
            for piece_size in [1, 7, 4095, 4096, 4097, 100_000] {
                let mut collector = LineCollector::default();
                let line = [vec![b'x'; length], b"\nnext\n".to_vec()].concat();
                line.chunks(piece_size).for_each(|chunk| collector.take(OutputStream::Out, chunk, 1));
                let lines: Vec<&str> = collector.text().lines().collect();
                assert_eq!(lines.len(), cuts + 1, "{length} in pieces of {piece_size}");
                assert!(lines[0].starts_with("1 o "));
                assert!(lines[1..cuts].iter().all(|line| line.starts_with("1 O x")));
                assert_eq!(lines[cuts], "1 o next");
                assert_eq!(lines[..cuts].iter().map(|line| line.len() - 4).sum::<usize>(), length);
            }
        }
    }

    fn texts(line: &[u8], piece_size: usize) -> Vec<Vec<u8>> {
        let mut collector = LineCollector::default();
        line.chunks(piece_size).for_each(|chunk| collector.take(OutputStream::Out, chunk, 1));
        collector.take(OutputStream::Out, b"\n", 1);
        let lines = collector.text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let texts: Vec<_> = lines.map(|line| line[4..].to_vec()).collect();
        assert_eq!(texts.concat(), line, "in pieces of {piece_size}");
        assert!(texts.iter().all(|text| (1..=TEXT_MAX).contains(&text.len())));
        texts
    }

    const PIECE_SIZES: [usize; 9] = [1, 2, 3, 7, 4094, 4095, 4096, 4097, 100_000];

    #[test]
    fn split_never_cuts_a_character() {
        for character in ["я", "水", "🐟"] {
            for before in 0..character.len() {
                let line = ["x".repeat(before), character.repeat(3 * TEXT_MAX / character.len())].concat();
                for piece_size in PIECE_SIZES {
                    let texts = texts(line.as_bytes(), piece_size);
                    assert!(texts.iter().all(|text| std::str::from_utf8(text).is_ok()), "{character} after {before}");
                    let whole = &texts[..texts.len() - 1];
                    assert!(whole.iter().all(|text| text.len() + character.len() > TEXT_MAX), "{character}");
                }
            }
        }
    }

    #[test]
    fn invalid_utf8_is_split_at_the_limit() {
        let no_continuation = b"\xe0\x80".as_slice();
        let (no_third_byte, too_high) = (b"\xc3\xa9\xa9".as_slice(), b"\xf4\x90\x80\x80".as_slice());
        for invalid in [b"\x80".as_slice(), b"\xff", b"\xf0", no_continuation, no_third_byte, too_high] {
            let line = invalid.repeat(3 * TEXT_MAX / invalid.len());
            for piece_size in PIECE_SIZES {
                let cuts = texts(&line, piece_size);
                let expected_length = if invalid == no_third_byte { TEXT_MAX - 1 } else { TEXT_MAX };
                assert!(cuts[..cuts.len() - 1].iter().all(|text| text.len() >= expected_length), "{invalid:?}");
            }
        }
    }

    #[test]
    fn split_lines_decode_like_the_whole_line() {
        // Bytes that often start, continue, or break off characters.
        let bytes = b"\xf0\x9f\x98\x80\xe6\xb0\xb4\xd1\x8f\xed\xa0\xf4\xe0\xc0\xffx";
        let mut number = 1_u64;
        let mut random_byte = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes[(number >> 33) as usize % bytes.len()]
        };
        for _ in 0..500 {
            let line: Vec<u8> = (0..3 * TEXT_MAX).map(|_| random_byte()).collect();
            let read = |texts: Vec<Vec<u8>>| -> String {
                texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
            };
            let whole = String::from_utf8_lossy(&line);
            for piece_size in [5, 4095, 100_000] {
                assert!(read(texts(&line, piece_size)) == whole, "in pieces of {piece_size}: {line:x?}");
            }
        }
    }

    #[test]
    fn batches_of_empty_lines_are_bounded() {
        let mut collector = LineCollector::default();
        collector.take(OutputStream::Err, &vec![b'\n'; 200_000], 1_700_000_000_000_000);
        assert_eq!(collector.text().lines().filter(|line| *line == "1700000000000000 e ").count(), 200_000);
    }
}
