//! How an answer is read. Nothing is believed: a head or a body beyond its limit, a framing that contradicts itself and
//! an answer that ends too soon are no answer.

use std::io::{self, BufRead, BufReader, Read};
use std::time::Duration;

/// Status line and headers together.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// More than any answer to a game has.
pub const BODY_BYTES_MAX: usize = 256 << 10;
/// Answers that announce another one (1xx) before the real one.
const ANNOUNCEMENTS_MAX: usize = 8;

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// As it came.
    pub status: u16,
    /// How long to wait before the next try.
    pub retry_after: Option<Duration>,
    /// Without its framing.
    pub body: Vec<u8>,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// Nobody is there.
    Unreachable(io::ErrorKind),
    /// The connection ended before the first byte: it had been kept for too long.
    Ended,
    /// It ended, or broke, in the middle.
    Cut,
    /// The time is over.
    TooSlow,
    /// It has more than we take.
    TooLarge,
    /// It is not HTTP/1.
    Malformed(&'static str),
}

impl NoAnswer {
    /// Of a failed write or first read.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TooSlow,
            _ => Self::Ended,
        }
    }
}

/// How long the body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilEnd,
}

struct Head {
    status: u16,
    retry_after: Option<Duration>,
    framing: Framing,
    is_kept: bool,
}

/// The answer, and whether the connection may carry another call.
pub fn read(source: impl Read) -> Result<(Answer, bool), NoAnswer> {
    let mut source = BufReader::with_capacity(4096, source);
    if source.fill_buf().map_err(|error| NoAnswer::of(&error))?.is_empty() {
        return Err(NoAnswer::Ended);
    }
    for _ in 0..ANNOUNCEMENTS_MAX {
        let head = read_head(&mut source)?;
        match head.status {
            101 => return Err(NoAnswer::Malformed("another protocol")),
            100..=199 => continue,
            _ => {}
        }
        let body = match head.framing {
            _ if matches!(head.status, 204 | 304) => Vec::new(),
            Framing::Length(length) => read_exactly(&mut source, length)?,
            Framing::Chunked => read_chunks(&mut source)?,
            Framing::UntilEnd => read_to_end(&mut source)?,
        };
        // What nobody asked for would be taken for the next answer.
        let is_reusable = head.is_kept && head.framing != Framing::UntilEnd && source.buffer().is_empty();
        return Ok((Answer { status: head.status, retry_after: head.retry_after, body }, is_reusable));
    }
    Err(NoAnswer::Malformed("announcements without an end"))
}

fn read_head(source: &mut impl BufRead) -> Result<Head, NoAnswer> {
    let mut budget = HEAD_BYTES_MAX;
    let line = read_line(source, &mut budget)?;
    let status = line.strip_prefix(b"HTTP/1.").filter(|rest| rest.len() >= 5 && rest[1] == b' ');
    let status = status.filter(|rest| rest.get(5).is_none_or(|byte| *byte == b' '));
    let (version, status) = status.map(|rest| (rest[0], number(&rest[2..5], 10))).unwrap_or((0, None));
    let status = status.and_then(|status| u16::try_from(status).ok()).filter(|status| (100..=599).contains(status));
    let mut head = Head {
        status: status.ok_or(NoAnswer::Malformed("status line"))?,
        retry_after: None,
        framing: Framing::UntilEnd,
        is_kept: version == b'1',
    };
    loop {
        let line = read_line(source, &mut budget)?;
        if line.is_empty() {
            return Ok(head);
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or(NoAnswer::Malformed("header"))?;
        take_header(&mut head, &line[..colon].to_ascii_lowercase(), line[colon + 1..].trim_ascii())?;
    }
}

fn take_header(head: &mut Head, name: &[u8], value: &[u8]) -> Result<(), NoAnswer> {
    if name.is_empty() || !name.iter().all(|byte| byte.is_ascii_graphic()) {
        return Err(NoAnswer::Malformed("header"));
    }
    let framing = match name {
        b"content-length" => {
            let length = number(value, 10).ok_or(NoAnswer::Malformed("length"))?;
            Framing::Length(usize::try_from(length).unwrap_or(usize::MAX))
        }
        b"transfer-encoding" if value.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
        b"transfer-encoding" => return Err(NoAnswer::Malformed("encoding")),
        b"connection" => {
            let mut words = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            head.is_kept &= !words.any(|word| word.eq_ignore_ascii_case(b"close"));
            return Ok(());
        }
        b"retry-after" => {
            head.retry_after = number(value, 10).map(Duration::from_secs);
            return Ok(());
        }
        _ => return Ok(()),
    };
    if head.framing != Framing::UntilEnd && head.framing != framing {
        return Err(NoAnswer::Malformed("two lengths"));
    }
    head.framing = framing;
    Ok(())
}

fn read_chunks(source: &mut impl BufRead) -> Result<Vec<u8>, NoAnswer> {
    let mut body = Vec::new();
    // Sizes of chunks, extensions and trailers: what is not body is bounded too.
    let mut budget = HEAD_BYTES_MAX;
    loop {
        let line = read_line(source, &mut budget)?;
        let size = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let size = number(size, 16).ok_or(NoAnswer::Malformed("chunk"))?;
        if size == 0 {
            while !read_line(source, &mut budget)?.is_empty() {}
            return Ok(body);
        }
        let is_small = size <= (BODY_BYTES_MAX - body.len()) as u64;
        let size = if is_small { size as usize } else { return Err(NoAnswer::TooLarge) };
        body.extend(read_exactly(source, size)?);
        if !read_line(source, &mut budget)?.is_empty() {
            return Err(NoAnswer::Malformed("chunk"));
        }
    }
}

fn read_exactly(source: &mut impl BufRead, length: usize) -> Result<Vec<u8>, NoAnswer> {
    if length > BODY_BYTES_MAX {
        return Err(NoAnswer::TooLarge);
    }
    let mut body = Vec::new();
    source.take(length as u64).read_to_end(&mut body).map_err(|error| broken(&error))?;
    if body.len() == length { Ok(body) } else { Err(NoAnswer::Cut) }
}

fn read_to_end(source: &mut impl BufRead) -> Result<Vec<u8>, NoAnswer> {
    let mut body = Vec::new();
    source.take(BODY_BYTES_MAX as u64 + 1).read_to_end(&mut body).map_err(|error| broken(&error))?;
    if body.len() <= BODY_BYTES_MAX { Ok(body) } else { Err(NoAnswer::TooLarge) }
}

/// A line without its end, paid from the budget.
fn read_line(source: &mut impl BufRead, budget: &mut usize) -> Result<Vec<u8>, NoAnswer> {
    let mut line = Vec::new();
    source.take(*budget as u64).read_until(b'\n', &mut line).map_err(|error| broken(&error))?;
    *budget -= line.len();
    if line.pop() != Some(b'\n') {
        return Err(if *budget == 0 { NoAnswer::TooLarge } else { NoAnswer::Cut });
    }
    let is_plain = line.pop() == Some(b'\r') && !line.iter().any(|byte| matches!(byte, b'\r' | 0));
    if is_plain { Ok(line) } else { Err(NoAnswer::Malformed("line")) }
}

/// Digits and nothing else.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let is_plain = !digits.is_empty() && digits.iter().all(|byte| char::from(*byte).is_digit(radix));
    u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_plain)?, radix).ok()
}

fn broken(error: &io::Error) -> NoAnswer {
    match NoAnswer::of(error) {
        NoAnswer::Ended => NoAnswer::Cut,
        other => other,
    }
}

#[cfg(test)]
mod tests;
