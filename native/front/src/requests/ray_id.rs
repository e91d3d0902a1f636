//! Ray ids: random ids of requests, written with 32 hexadecimal digits.

use std::cell::RefCell;
use std::io;

const ID_BYTES: usize = 16;
pub const DIGITS: usize = 2 * ID_BYTES;
/// Ids for each read of random bytes, because a system call for each request would cost more than the rest.
const IDS_AT_ONCE: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RayId([u8; ID_BYTES]);

impl RayId {
    #[cfg(test)]
    pub const fn from_bytes(bytes: [u8; ID_BYTES]) -> RayId {
        RayId(bytes)
    }

    /// Returns None unless these are 32 hexadecimal digits in lower case.
    pub fn from_digits(digits: &[u8]) -> Option<RayId> {
        let mut bytes = [0; ID_BYTES];
        if digits.len() != DIGITS {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (value(pair[0])? << 4) | value(pair[1])?;
        }
        Some(RayId(bytes))
    }

    pub fn bytes(&self) -> &[u8; ID_BYTES] {
        &self.0
    }

    pub fn text(&self) -> String {
        self.digits().iter().map(|digit| char::from(*digit)).collect()
    }

    pub fn digits(&self) -> [u8; DIGITS] {
        let mut digits = [0; DIGITS];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        digits
    }
}

pub struct RayIds(RefCell<RandomBytes>);

struct RandomBytes {
    bytes: [u8; ID_BYTES * IDS_AT_ONCE],
    used: usize,
}

impl RayIds {
    pub fn new() -> RayIds {
        RayIds(RefCell::new(RandomBytes { bytes: [0; ID_BYTES * IDS_AT_ONCE], used: ID_BYTES * IDS_AT_ONCE }))
    }

    pub fn next(&self) -> io::Result<RayId> {
        let mut random = self.0.borrow_mut();
        if random.used == random.bytes.len() {
            getrandom::fill(&mut random.bytes)?;
            random.used = 0;
        }
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&random.bytes[random.used..][..ID_BYTES]);
        random.used += ID_BYTES;
        Ok(RayId(id))
    }
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' + value - 10 }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn digits_are_lower_case_and_in_order() {
        let id =
            RayId([0x00, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xff, 0x10, 0x0a, 0xa0, 0x9f, 0xf9, 0x80]);
        assert_eq!(id.digits(), *b"000123456789abcdefff100aa09ff980");
        assert_eq!(RayId::from_digits(&id.digits()), Some(id));
        assert_eq!(RayId::from_digits(b"000123456789ABCDEFFF100AA09FF980"), None);
        assert_eq!(RayId::from_digits(b"00"), None);
    }

    #[test]
    fn ids_differ_over_several_reads() {
        let ids = RayIds::new();
        let count = 3 * IDS_AT_ONCE;
        let different: HashSet<_> = (0..count).map(|_| *ids.next().expect("random bytes").bytes()).collect();
        assert_eq!(different.len(), count);
    }
}
