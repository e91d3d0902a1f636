//! Format of segment headers, and of the event kind table that segments and images share.
//! Format 2 adds the alignment of batches. This build reads formats 1 and 2, and writes format 2.

use std::path::Path;

use crate::batch_format::{FieldReader, FieldWriter, SegmentIdentity};
use crate::error::OpenError;
use crate::files::FileHandle;
use crate::options::Options;

/// Bytes reserved for the header of a segment or image.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 256 * 1024;
const SEGMENT_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
const SEGMENT_BYTES_MULTIPLE: u64 = 4096;
pub(crate) const HEADER_SPACE: u64 = 16 * 1024;

/// Smallest alignment of new segments: one page of the page cache, which the kernel writes as a whole.
const ALIGNMENT_MIN: u64 = 4096;
/// Largest alignment. The first batch begins after the header, so its offset is a multiple of each alignment.
const ALIGNMENT_MAX: u64 = HEADER_SPACE;
/// Alignment of format 1, which the header does not name.
const ALIGNMENT_OF_FORMAT_1: u64 = 512;

const MAGIC: &[u8; 8] = b"HJSEGMNT";
const VERSION: u32 = 2;
const FIXED: usize = 64;

pub(crate) struct Segment {
    pub identity: SegmentIdentity,
    pub bytes: u64,
    pub alignment: u64,
    pub file: Box<dyn FileHandle>,
}

#[derive(Debug)]
pub(crate) struct SegmentHeader {
    pub identity: SegmentIdentity,
    pub bytes: u64,
    /// Batches begin on multiples of this number of bytes.
    pub alignment: u64,
    pub kinds: Vec<(u8, String)>,
}

/// Returns the alignment of batches in new segments: the physical block of the device, from 4 KiB to 16 KiB.
///
/// The kernel writes pages, and a device writes its blocks. A power failure can damage a block that is being written. So no
/// two batches share a page or a block.
pub(crate) fn batch_alignment(physical_block: Option<u64>) -> u64 {
    physical_block.unwrap_or(ALIGNMENT_MIN).clamp(ALIGNMENT_MIN, ALIGNMENT_MAX).next_power_of_two()
}

/// Returns the physical block of the device if it is larger than any alignment.
///
/// Then two batches can share a block, and a power failure during the write of one can damage the other.
pub(crate) fn uncovered_block(physical_block: Option<u64>) -> Option<u64> {
    physical_block.filter(|bytes| *bytes > ALIGNMENT_MAX)
}

pub(crate) const fn payload_capacity(segment_bytes: u64, alignment: u64) -> u64 {
    (segment_bytes - HEADER_SPACE) / alignment * alignment - crate::batch_format::HEADER as u64
}

fn kinds_fit(kinds: &[(u8, &str)]) -> bool {
    FIXED * 2 + 2 + kinds.iter().map(|(_, name)| 2 + name.len()).sum::<usize>() + 4 <= HEADER_SPACE as usize
}

pub(crate) fn check_options(options: &Options) -> Result<(), OpenError> {
    let refuse = |reason: String| Err(OpenError::Options { reason });
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes)
        || !options.segment_bytes.is_multiple_of(SEGMENT_BYTES_MULTIPLE)
    {
        return refuse(format!(
            "segment_bytes is {}, must be a multiple of {SEGMENT_BYTES_MULTIPLE} from {SEGMENT_BYTES_MIN} to \
             {SEGMENT_BYTES_MAX}",
            options.segment_bytes
        ));
    }
    if options.kinds.iter().any(|(_, name)| name.is_empty() || name.len() > 255) {
        return refuse("names of event kinds have 1 to 255 bytes".to_owned());
    }
    if !kinds_fit(options.kinds) {
        return refuse("the table of event kinds is too large for a segment header".to_owned());
    }
    Ok(())
}

pub(crate) fn write_kinds(fields: &mut FieldWriter<'_>, kinds: &[(u8, &str)]) {
    fields.put(&(kinds.len() as u16).to_le_bytes());
    for (kind, name) in kinds {
        fields.put(&[*kind, name.len() as u8]);
        fields.put(name.as_bytes());
    }
}

pub(crate) fn read_kinds(fields: &mut FieldReader<'_>) -> Option<Vec<(u8, String)>> {
    let count = if fields.bytes.len() < 2 { return None } else { fields.u16() };
    let mut kinds = Vec::new();
    for _ in 0..count {
        if fields.bytes.len() < 2 {
            return None;
        }
        let kind = fields.u8();
        let length = fields.u8() as usize;
        if fields.bytes.len() < length {
            return None;
        }
        kinds.push((kind, String::from_utf8_lossy(fields.take(length)).into_owned()));
    }
    Some(kinds)
}

pub(crate) fn has_all_kinds(table: &[(u8, String)], kinds: &[(u8, &str)]) -> bool {
    kinds.iter().all(|(kind, name)| table.iter().any(|(k, n)| k == kind && n == name))
}

pub(crate) fn check_kind_names(path: &Path, table: &[(u8, String)], options: &Options) -> Result<(), OpenError> {
    for (kind, found) in table {
        if let Some((_, expected)) = options.kinds.iter().find(|(k, name)| k == kind && name != found) {
            return Err(OpenError::KindRenamed { path: path.to_owned(), kind: *kind, found: found.clone(), expected });
        }
    }
    Ok(())
}

pub(crate) fn encode_header(
    identity: &SegmentIdentity,
    epoch: u64,
    bytes: u64,
    alignment: u64,
    kinds: &[(u8, &str)],
) -> Vec<u8> {
    let mut buffer = vec![0; HEADER_SPACE as usize];
    let end = buffer.len() - 4;
    let mut fields = FieldWriter { bytes: &mut buffer, at: 0 };
    fields.put(MAGIC);
    fields.put(&VERSION.to_le_bytes());
    fields.put(&identity.shard.to_le_bytes());
    fields.put(&(alignment as u16).to_le_bytes());
    fields.put(&identity.segment.to_le_bytes());
    fields.put(&identity.salt.to_le_bytes());
    fields.put(&epoch.to_le_bytes());
    fields.put(&bytes.to_le_bytes());
    fields.at = FIXED;
    write_kinds(&mut fields, kinds);
    let crc = crc32fast::hash(&buffer[..end]);
    buffer[end..].copy_from_slice(&crc.to_le_bytes());
    buffer
}

pub(crate) fn decode_header(
    path: &Path,
    buffer: &[u8],
    number: u64,
    length: u64,
    options: &Options,
) -> Result<SegmentHeader, OpenError> {
    let damaged = |reason: String| OpenError::Header { path: path.to_owned(), reason };
    let (content, crc) = buffer.split_at(HEADER_SPACE as usize - 4);
    let mut fields = FieldReader { bytes: content };
    if fields.take(8) != MAGIC {
        return Err(damaged("not a segment".to_owned()));
    }
    let version = fields.u32();
    if !(1..=VERSION).contains(&version) {
        return Err(OpenError::Version { path: path.to_owned(), found: version, known: VERSION });
    }
    if crc32fast::hash(content).to_le_bytes() != crc {
        return Err(damaged("its checksum is wrong".to_owned()));
    }
    let shard = fields.u16();
    let written_alignment = u64::from(fields.u16());
    let alignment = if version == 1 { ALIGNMENT_OF_FORMAT_1 } else { written_alignment };
    if shard != options.shard {
        return Err(OpenError::Shard { path: path.to_owned(), found: shard, expected: options.shard });
    }
    let identity = SegmentIdentity { shard, segment: fields.u64(), salt: fields.u64() };
    fields.u64(); // Epoch of the run that prepared the segment. Only for inspection.
    let bytes = fields.u64();
    if identity.segment != number {
        return Err(damaged(format!("it is segment {}", identity.segment)));
    }
    if !alignment.is_power_of_two() || !(ALIGNMENT_OF_FORMAT_1..=ALIGNMENT_MAX).contains(&alignment) {
        return Err(damaged(format!("its batches are aligned to {alignment} bytes")));
    }
    if bytes != length {
        return Err(damaged(format!("the file has {length} bytes, should have {bytes}")));
    }
    let kinds = read_kinds(&mut FieldReader { bytes: &content[FIXED..] })
        .ok_or_else(|| damaged("its table of event kinds is cut short".to_owned()))?;
    check_kind_names(path, &kinds, options)?;
    Ok(SegmentHeader { identity, bytes, alignment, kinds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_is_the_bounded_physical_block() {
        for (physical_block, alignment) in [
            (None, 4_096),
            (Some(0), 4_096),
            (Some(512), 4_096),
            (Some(4_096), 4_096),
            (Some(6_144), 8_192),
            (Some(8_192), 8_192),
            (Some(16_384), 16_384),
            (Some(1 << 21), 16_384),
            (Some(u64::MAX), 16_384),
        ] {
            assert_eq!(batch_alignment(physical_block), alignment, "{physical_block:?}");
        }
    }

    #[test]
    fn block_above_the_largest_alignment_is_uncovered() {
        for physical_block in [None, Some(0), Some(512), Some(4_096), Some(16_384)] {
            assert_eq!(uncovered_block(physical_block), None);
        }
        for physical_block in [16_385, 32_768, 1 << 21] {
            assert_eq!(uncovered_block(Some(physical_block)), Some(physical_block));
            assert!(batch_alignment(Some(physical_block)) < physical_block);
        }
    }
}
