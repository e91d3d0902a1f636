//! Format of one batch: a header with checksums, the payload, and zeros up to the segment's alignment.
//! Batches begin on multiples of the alignment, so that no write changes a page or block with acknowledged bytes.

use crate::lsn::Lsn;
use crate::service_clock::ClockRecord;

/// Bytes of a batch header. A header lies within one disk sector, so that no crash splits it.
pub(crate) const HEADER: usize = 128;

const MAGIC: u32 = u32::from_le_bytes(*b"HJB1");

/// Returns the bytes of a batch in a segment: header, payload and padding.
pub(crate) const fn framed_bytes(length: u64, alignment: u64) -> u64 {
    (HEADER as u64 + length).div_ceil(alignment) * alignment
}

/// Identity of a segment file. Batches with another identity are left from an earlier use of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentIdentity {
    pub shard: u16,
    pub segment: u64,
    /// Random number per use of a file, so that event bytes cannot forge a batch header.
    pub salt: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub epoch: u64,
    /// Number of the batch, from 1, over all segments and including empty batches.
    pub sequence: u64,
    pub first_lsn: Lsn,
    pub count: u32,
    pub length: u32,
    pub clock: ClockRecord,
}

pub(crate) fn seal(buffer: &mut Vec<u8>, identity: &SegmentIdentity, alignment: u64, header: &BatchHeader) {
    let payload_crc = crc32fast::hash(&buffer[HEADER..]);
    let mut bytes = [0_u8; HEADER];
    let mut fields = FieldWriter { bytes: &mut bytes, at: 0 };
    fields.put(&MAGIC.to_le_bytes());
    fields.put(&[0; 4]);
    fields.put(&identity.salt.to_le_bytes());
    fields.put(&identity.shard.to_le_bytes());
    fields.put(&[0; 2]);
    fields.put(&payload_crc.to_le_bytes());
    fields.put(&header.epoch.to_le_bytes());
    fields.put(&identity.segment.to_le_bytes());
    fields.put(&header.sequence.to_le_bytes());
    fields.put(&header.first_lsn.to_le_bytes());
    fields.put(&header.count.to_le_bytes());
    fields.put(&header.length.to_le_bytes());
    write_clock(&mut fields, &header.clock);
    let crc = crc32fast::hash(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    buffer[..HEADER].copy_from_slice(&bytes);
    buffer.resize(framed_bytes(u64::from(header.length), alignment) as usize, 0);
}

/// Reads a batch header and the checksum of its payload. Returns `None` unless the header is valid for `identity`.
pub(crate) fn read_header(bytes: &[u8], identity: &SegmentIdentity) -> Option<(BatchHeader, u32)> {
    if bytes.len() < HEADER || bytes[..4] != MAGIC.to_le_bytes() {
        return None;
    }
    let mut fields = FieldReader { bytes: &bytes[4..HEADER] };
    let crc = fields.u32();
    let is_same_segment = fields.u64() == identity.salt && fields.u16() == identity.shard;
    if !is_same_segment || crc32fast::hash(&bytes[8..HEADER]) != crc {
        return None;
    }
    fields.u16(); // Zero, reserved for flags.
    let payload_crc = fields.u32();
    let epoch = fields.u64();
    if fields.u64() != identity.segment {
        return None;
    }
    let header = BatchHeader {
        epoch,
        sequence: fields.u64(),
        first_lsn: fields.u64(),
        count: fields.u32(),
        length: fields.u32(),
        clock: read_clock_record(&mut fields),
    };
    Some((header, payload_crc))
}

/// Reports whether a block begins like a batch of this segment, valid or damaged.
pub(crate) fn begins_like_batch(bytes: &[u8], identity: &SegmentIdentity) -> bool {
    bytes.len() >= 16 && bytes[..4] == MAGIC.to_le_bytes() && bytes[8..16] == identity.salt.to_le_bytes()
}

pub(crate) struct FieldWriter<'a> {
    pub bytes: &'a mut [u8],
    pub at: usize,
}

impl FieldWriter<'_> {
    pub fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }
}

pub(crate) struct FieldReader<'a> {
    pub bytes: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub fn take(&mut self, length: usize) -> &'a [u8] {
        let (head, tail) = self.bytes.split_at(length);
        self.bytes = tail;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N));
        array
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

pub(crate) fn write_clock(fields: &mut FieldWriter<'_>, clock: &ClockRecord) {
    fields.put(&clock.boot_id);
    fields.put(&clock.boot_ms.to_le_bytes());
    fields.put(&clock.wall_ms.to_le_bytes());
    fields.put(&clock.service_ms.to_le_bytes());
}

pub(crate) fn read_clock_record(fields: &mut FieldReader<'_>) -> ClockRecord {
    ClockRecord { boot_id: fields.array(), boot_ms: fields.u64(), wall_ms: fields.u64(), service_ms: fields.u64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDENTITY: SegmentIdentity = SegmentIdentity { shard: 1, segment: 7, salt: 0x1234_5678_9ABC_DEF0 };

    const ALIGNMENT: u64 = 4096;

    fn sealed(payload: &[u8]) -> (BatchHeader, Vec<u8>) {
        let header = BatchHeader {
            epoch: 3,
            sequence: 44,
            first_lsn: 1_000,
            count: 5,
            length: payload.len() as u32,
            clock: ClockRecord { boot_id: [9; 16], boot_ms: 1, wall_ms: 2, service_ms: 3 },
        };
        let mut buffer = vec![0; HEADER];
        buffer.extend_from_slice(payload);
        seal(&mut buffer, &IDENTITY, ALIGNMENT, &header);
        (header, buffer)
    }

    proptest! {
        #[test]
        fn sealed_batch_round_trips(payload in prop::collection::vec(any::<u8>(), 0..9_000)) {
            let (header, buffer) = sealed(&payload);
            prop_assert_eq!(buffer.len() as u64, framed_bytes(payload.len() as u64, ALIGNMENT));
            prop_assert_eq!(buffer.len() as u64 % ALIGNMENT, 0);
            let (read, payload_crc) = read_header(&buffer, &IDENTITY).expect("a whole header");
            prop_assert_eq!(read, header);
            prop_assert_eq!(crc32fast::hash(&payload), payload_crc);
            prop_assert_eq!(&buffer[HEADER..HEADER + payload.len()], &payload[..]);
        }

        #[test]
        fn header_with_a_flipped_bit_is_rejected(bit in 0..HEADER * 8) {
            let (_, mut buffer) = sealed(b"events");
            buffer[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read_header(&buffer, &IDENTITY).is_none());
        }

        #[test]
        fn arbitrary_bytes_are_no_header(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(read_header(&bytes, &IDENTITY).is_none());
        }
    }

    #[test]
    fn batch_of_another_segment_identity_is_rejected() {
        let (_, buffer) = sealed(b"events");
        for other in [
            SegmentIdentity { salt: IDENTITY.salt + 1, ..IDENTITY },
            SegmentIdentity { segment: IDENTITY.segment + 1, ..IDENTITY },
            SegmentIdentity { shard: IDENTITY.shard + 1, ..IDENTITY },
        ] {
            assert!(read_header(&buffer, &other).is_none());
        }
    }
}
