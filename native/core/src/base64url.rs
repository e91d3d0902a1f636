//! Canonical base64url without padding: each byte string has one text, and the decoder rejects every other text.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

const INVALID: u32 = 1 << 31;

/// 6-bit value of each character, shifted to its bits in a group of four characters. Indexed by position and character.
const DECODE_TABLES: [[u32; 256]; 4] = {
    let mut tables = [[INVALID; 256]; 4];
    let mut value = 0;
    while value < 64 {
        let character = ALPHABET[value] as usize;
        tables[0][character] = (value as u32) << 18;
        tables[1][character] = (value as u32) << 12;
        tables[2][character] = (value as u32) << 6;
        tables[3][character] = value as u32;
        value += 1;
    }
    tables
};

#[inline]
fn value(group: usize, character: u8) -> u32 {
    DECODE_TABLES[group][usize::from(character)]
}

const LONGEST: usize = 80;

/// Appends the base64url text of at most 60 bytes.
pub(crate) fn encode_into(bytes: &[u8], text: &mut String) {
    let mut buffer = [0u8; LONGEST];
    let mut at = 0;
    let mut chunks = bytes.chunks_exact(3);
    for (chunk, characters) in (&mut chunks).zip(buffer.chunks_exact_mut(4)) {
        characters.copy_from_slice(&encode_group(chunk[0], chunk[1], chunk[2]));
        at += 4;
    }
    match chunks.remainder() {
        [first] => {
            buffer[at..at + 2].copy_from_slice(&encode_group(*first, 0, 0)[..2]);
            at += 2;
        }
        [first, second] => {
            buffer[at..at + 3].copy_from_slice(&encode_group(*first, *second, 0)[..3]);
            at += 3;
        }
        _ => {}
    }
    text.push_str(core::str::from_utf8(&buffer[..at]).unwrap_or_default());
}

#[inline]
fn encode_group(first: u8, second: u8, third: u8) -> [u8; 4] {
    [
        ALPHABET[usize::from(first >> 2)],
        ALPHABET[usize::from((first & 3) << 4 | second >> 4)],
        ALPHABET[usize::from((second & 15) << 2 | third >> 6)],
        ALPHABET[usize::from(third & 63)],
    ]
}

/// Decodes exactly `N` bytes. Returns None for a wrong length, an invalid character, or set bits in the unused tail.
pub(crate) fn decode<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != (N * 4).div_ceil(3) {
        return None;
    }
    let mut bytes = [0u8; N];
    let mut combined = 0u32;
    let mut chunks = text.chunks_exact(4);
    let mut groups = bytes.chunks_exact_mut(3);
    for (c, group) in (&mut chunks).zip(&mut groups) {
        let word = value(0, c[0]) | value(1, c[1]) | value(2, c[2]) | value(3, c[3]);
        combined |= word;
        group.copy_from_slice(&word.to_be_bytes()[1..]);
    }
    let tail = groups.into_remainder();
    let word = match *chunks.remainder() {
        [] => 0,
        [a, b] => value(0, a) | value(1, b),
        [a, b, c] => value(0, a) | value(1, b) | value(2, c),
        _ => INVALID,
    };
    let [_, decoded @ ..] = word.to_be_bytes();
    tail.copy_from_slice(&decoded[..tail.len()]);
    let has_unused_bits = decoded[N % 3..].iter().any(|byte| *byte != 0);
    ((combined | word) & INVALID == 0 && !has_unused_bits).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_round_trips() {
        let bytes: Vec<u8> = (0..6).map(|index| index * 47 + 3).collect();
        let mut text = String::new();
        encode_into(&bytes[..6], &mut text);
        assert_eq!(decode::<6>(text.as_bytes()).as_ref().map(|b| &b[..]), Some(&bytes[..6]));
        text.clear();
        encode_into(&bytes[..5], &mut text);
        assert_eq!(decode::<5>(text.as_bytes()).as_ref().map(|b| &b[..]), Some(&bytes[..5]));
        text.clear();
        encode_into(&bytes[..4], &mut text);
        assert_eq!(decode::<4>(text.as_bytes()).as_ref().map(|b| &b[..]), Some(&bytes[..4]));
    }

    #[test]
    fn text_matches_rfc_4648() {
        for (bytes, expected) in [(&b"f"[..], "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"\xfb\xff", "-_8")] {
            let mut text = String::new();
            encode_into(bytes, &mut text);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn noncanonical_text_is_rejected() {
        assert_eq!(decode::<1>(b"Zg"), Some([b'f']));
        assert_eq!(decode::<1>(b"Zh"), None);
        assert_eq!(decode::<1>(b"Z="), None);
        assert_eq!(decode::<1>(b"Zgg"), None);
        assert_eq!(decode::<3>(b"Zm+v"), None);
    }
}
