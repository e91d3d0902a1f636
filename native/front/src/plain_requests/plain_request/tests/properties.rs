//! Properties of plain requests: changed bytes, and requests of random fragments.

use proptest::prelude::*;

use super::*;

/// Returns the range of a header's value in a head.
fn value_range(head: &[u8], name: &str) -> Option<std::ops::Range<usize>> {
    let find = |text: &[u8], part: &[u8]| text.windows(part.len()).position(|window| window == part);
    let start_of_line = format!("\r\n{name}:");
    let start = find(&head.to_ascii_lowercase(), start_of_line.as_bytes())? + start_of_line.len();
    Some(start..start + find(&head[start..], b"\r\n").expect("a whole line"))
}

/// Checks that a changed head is not plain, or that nothing but the header that was changed is different.
fn check_changed_head(original: &PlainRequest<'_>, changed: &[u8], head_length: usize, at: usize) {
    let Received::Plain(plain) = read(changed) else { return };
    let what = || format!("{} at {at}", shown(changed));
    assert_eq!(plain.length, head_length + plain.body.len(), "{}", what());
    assert_eq!(plain.body, &changed[head_length..plain.length], "{}", what());
    let head = &changed[..head_length];
    for (name, value, original) in [
        ("authorization", plain.head.authorization, original.head.authorization),
        ("content-type", plain.head.media_type, original.head.media_type),
        ("idempotency-key", plain.head.idempotency_key, original.head.idempotency_key),
        ("origin", plain.head.origin, original.head.origin),
    ] {
        let range = value_range(head, name);
        // A header with another name has no effect.
        assert_eq!(value, range.clone().map(|range| head[range].trim_ascii()), "{}", what());
        let is_changed = range.is_none_or(|range| (range.start - 1..=range.end).contains(&at));
        assert!(is_changed || value == original, "{}", what());
    }
    let length = value_range(head, "content-length").expect("a length");
    if !(length.start..=length.end).contains(&at) {
        assert_eq!(plain.body, original.body, "{}", what());
    }
    let written = str::from_utf8(head[length].trim_ascii()).expect("digits");
    assert_eq!(written.parse(), Ok(plain.body.len()), "{}", what());
}

/// Runs a check for each head that differs in one byte: another byte, one byte more, and one byte less.
fn for_each_changed_head(bytes: &[u8], head_length: usize, mut check: impl FnMut(&[u8], usize, usize)) {
    for at in 0..head_length {
        let (before, after) = (&bytes[..at], &bytes[at + 1..]);
        check(&[before, after].concat(), head_length - 1, at);
        for byte in 0..=u8::MAX {
            check(&[before, &[byte], after].concat(), head_length, at);
            // A repeated last byte would belong to the body.
            if at + 1 < head_length || byte != b'\n' {
                check(&[before, &[byte], &bytes[at..]].concat(), head_length + 1, at);
            }
        }
    }
}

/// A changed byte of a header gives another value, or a header without effect, because the head has no checksum. It does not
/// change the meaning of the other headers of a request that is still plain.
#[test]
fn one_changed_byte_changes_only_its_header() {
    let bytes = request(&[
        "Host: a",
        AUTHORIZATION,
        "Connection: keep-alive",
        TYPE,
        "Accept: */*",
        "Idempotency-Key: 1",
        "Origin: http://a",
        LENGTH,
    ]);
    let Received::Plain(original) = read(&bytes) else { panic!("not plain") };
    for_each_changed_head(&bytes, bytes.len() - BODY.len(), |changed, head_length, at| {
        check_changed_head(&original, changed, head_length, at);
    });
}

/// A part of a request that is likely to matter for a parser.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let usual = prop::sample::select(vec![
        &b"Host: a\r\n"[..],
        b"Authorization: Bearer a\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 50\r\n",
        b"Content-Type: application/json\r\n",
        b"Connection: keep-alive\r\n",
        b"Accept: a\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b":",
        b" ",
        b"{}",
    ]);
    prop_oneof![8 => usual.prop_map(<[u8]>::to_vec), 1 => prop::collection::vec(any::<u8>(), 0..4)]
}

fn request_of_fragments() -> impl Strategy<Value = Vec<u8>> {
    let usual =
        Just([b"Host: a\r\n".to_vec(), b"Authorization: Bearer a\r\n".to_vec(), b"Content-Length: 5\r\n".to_vec()]);
    (usual, prop::collection::vec((any::<prop::sample::Index>(), fragment()), 0..6)).prop_map(|(usual, more)| {
        let mut parts = usual.to_vec();
        for (at, part) in more {
            parts.insert(at.index(parts.len() + 1), part);
        }
        [LINE.as_bytes(), b"\r\n", &parts.concat(), b"\r\n12345"].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2 * REQUEST_BYTES_MAX)) {
        prop_assert!(!is_plain(&bytes));
        let _ = read(&[LINE.as_bytes(), b"\r\n", &bytes].concat());
        let _ = read(&[&usual()[..usual().len() - BODY.len() - 2], &bytes].concat());
    }

    #[test]
    fn answer_depends_only_on_the_bytes_of_the_request(
        bytes in request_of_fragments(),
        next in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let with_next = [&bytes[..], &next].concat();
        let received = read(&bytes);
        if received == Received::Partial {
            return Ok(());
        }
        prop_assert_eq!(&read(&with_next), &received);
        let Received::Plain(plain) = &received else { return Ok(()) };
        prop_assert!(plain.length <= REQUEST_BYTES_MAX);
        prop_assert_eq!(&read(&bytes[..plain.length]), &received);
        for end in 0..plain.length {
            prop_assert_eq!(read(&bytes[..end]), Received::Partial);
        }
    }
}
