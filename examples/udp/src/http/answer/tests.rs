//! Answers as they should be, and as the worst server would send them.

use super::*;

/// A connection that gives one byte at a time, and then ends.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
        self.0 = rest;
        buffer[0] = *first;
        Ok(1)
    }
}

/// A connection that never ends: its beginning, then one byte for ever.
struct Endless<'a>(&'a [u8], u8);

impl Read for Endless<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            buffer.fill(self.1);
            return Ok(buffer.len());
        }
        self.0.read(buffer)
    }
}

fn read_text(text: &str) -> Result<(Answer, bool), NoAnswer> {
    let whole = read(text.as_bytes());
    assert_eq!(read(Trickle(text.as_bytes())).map(|found| found.0), whole.clone().map(|found| found.0), "byte by byte");
    whole
}

fn body_of(text: &str) -> String {
    String::from_utf8(read_text(text).unwrap().0.body).unwrap()
}

#[test]
fn an_answer_with_a_length_leaves_the_connection_for_the_next_call() {
    let (answer, is_reusable) = read_text("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    assert_eq!((answer.status, answer.body.as_slice(), is_reusable), (200, &b"{}"[..], true));
    let (answer, _) = read_text("HTTP/1.1 503 \r\nretry-after: 4\r\ncontent-length:0\r\n\r\n").unwrap();
    assert_eq!((answer.status, answer.retry_after), (503, Some(Duration::from_secs(4))));
}

#[test]
fn a_chunked_answer_is_put_together() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n";
    assert_eq!(body_of(&format!("{head}1\r\n{{\r\nA;x=\"y\"\r\n0123456789\r\n1\r\n}}\r\n0\r\n\r\n")), "{0123456789}");
    assert_eq!(body_of(&format!("{head}0\r\nTrailer: yes\r\n\r\n")), "");
    assert!(read_text(&format!("{head}0\r\n\r\n")).unwrap().1, "and the connection is kept");
}

#[test]
fn announcements_come_before_the_answer() {
    assert_eq!(body_of("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1"), "1");
    let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(100);
    assert!(matches!(read_text(&endless), Err(NoAnswer::Malformed(_))));
}

#[test]
fn a_connection_is_not_used_again_when_it_says_so_or_has_more_than_was_asked_for() {
    for text in [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive, Close\r\n\r\n",
        "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    ] {
        assert!(!read_text(text).unwrap().1, "{text}");
    }
    let (_, is_reusable) = read(&b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n"[..]).unwrap();
    assert!(!is_reusable);
}

#[test]
fn an_answer_that_is_cut_anywhere_is_none() {
    for whole in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ] {
        assert!(read_text(whole).is_ok());
        assert_eq!(read_text(""), Err(NoAnswer::Ended));
        for length in 1..whole.len() {
            assert_eq!(read_text(&whole[..length]), Err(NoAnswer::Cut), "{:?}", &whole[..length]);
        }
    }
}

#[test]
fn what_is_too_large_is_refused_before_it_is_kept() {
    let length = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BODY_BYTES_MAX + 1);
    let digits = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", u64::MAX);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("{chunked}{:x}\r\n", u64::MAX);
    let chunks = format!("{chunked}{:x}\r\n{}\r\n1\r\n", BODY_BYTES_MAX, " ".repeat(BODY_BYTES_MAX));
    for text in [&length, &digits, &chunk, &chunks] {
        assert_eq!(read(text.as_bytes()), Err(NoAnswer::TooLarge), "{}", &text[..80.min(text.len())]);
    }
    for (beginning, byte) in [
        ("HTTP/1.1 200 OK\r\n\r\n", b'x'),
        ("HTTP/1.1 200 ", b'x'),
        ("HTTP/1.1 200 OK\r\nx: ", b'x'),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b'x'),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: ", b'x'),
    ] {
        assert_eq!(read(Endless(beginning.as_bytes(), byte)), Err(NoAnswer::TooLarge), "{beginning}");
    }
}

#[test]
fn what_is_not_http_or_contradicts_itself_is_no_answer() {
    for text in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 20x OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        "HTTP/1.1 200 OK\n\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: no name\r\n\r\n",
        "HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n1",
        "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n12\r\n0\r\n\r\n",
    ] {
        assert!(matches!(read_text(text), Err(NoAnswer::Malformed(_))), "{text:?}: {:?}", read_text(text));
    }
}

#[test]
fn a_retry_after_that_is_no_number_is_none() {
    for value in ["Wed, 21 Oct 2015 07:28:00 GMT", "-1", "1.5", ""] {
        let text = format!("HTTP/1.1 429 Slow\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(read_text(&text).unwrap().0.retry_after, None, "{value:?}");
    }
}
