//! base64url without padding, canonical: one text for each byte string, every other text is refused.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

const INVALID: u8 = 0xff;

const VALUES: [u8; 256] = {
    let mut values = [INVALID; 256];
    let mut index = 0;
    while index < 64 {
        values[ALPHABET[index] as usize] = index as u8;
        index += 1;
    }
    values
};

/// Appends the text of `bytes`.
pub(crate) fn encode_into(bytes: &[u8], text: &mut String) {
    let mut chunks = bytes.chunks_exact(3);
    for chunk in &mut chunks {
        let word = u32::from(chunk[0]) << 16 | u32::from(chunk[1]) << 8 | u32::from(chunk[2]);
        push(text, word, 4);
    }
    match chunks.remainder() {
        [first] => push(text, u32::from(*first) << 16, 2),
        [first, second] => push(text, u32::from(*first) << 16 | u32::from(*second) << 8, 3),
        _ => {}
    }
}

fn push(text: &mut String, word: u32, characters: u32) {
    for index in 0..characters {
        text.push(ALPHABET[(word >> (18 - 6 * index)) as usize & 63] as char);
    }
}

/// Reads exactly `N` bytes; None for another length, a foreign character, or bits set in the unused tail.
pub(crate) fn decode<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != (N * 4).div_ceil(3) {
        return None;
    }
    let mut bytes = [0u8; N];
    let mut is_invalid = 0u8;
    let mut at = 0;
    for chunk in text.chunks(4) {
        let mut word = 0u32;
        for (index, character) in chunk.iter().enumerate() {
            let value = VALUES[*character as usize];
            is_invalid |= value & 0xc0;
            word |= u32::from(value & 63) << (18 - 6 * index);
        }
        let whole = [(word >> 16) as u8, (word >> 8) as u8, word as u8];
        let taken = chunk.len() - 1;
        bytes[at..at + taken].copy_from_slice(&whole[..taken]);
        at += taken;
        is_invalid |= u8::from(whole[taken..].iter().any(|byte| *byte != 0)) << 7;
    }
    (is_invalid == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back() {
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
    fn the_text_is_that_of_rfc_4648() {
        for (bytes, expected) in [(&b"f"[..], "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"\xfb\xff", "-_8")] {
            let mut text = String::new();
            encode_into(bytes, &mut text);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn a_tail_with_bits_a_foreign_character_and_another_length_are_refused() {
        assert_eq!(decode::<1>(b"Zg"), Some([b'f']));
        assert_eq!(decode::<1>(b"Zh"), None);
        assert_eq!(decode::<1>(b"Z="), None);
        assert_eq!(decode::<1>(b"Zgg"), None);
        assert_eq!(decode::<3>(b"Zm+v"), None);
    }
}
