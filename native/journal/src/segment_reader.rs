//! Sequential segment reader with large reads. Reports whole, torn and missing batches.

use std::path::PathBuf;

use crate::batch_format::{self, BatchHeader, HEADER, framed_bytes};
use crate::error::OpenError;
use crate::files::{Access, FileHandle, read_exact_at};
use crate::folder::Folder;
use crate::options::Options;
use crate::segment_format::{self, HEADER_SPACE, SegmentHeader};

/// Bytes per read, small enough for the second-level cache.
const CHUNK: usize = 1024 * 1024;

pub(crate) enum SegmentEntry<'a> {
    Batch(BatchHeader, &'a [u8]),
    TornBatch(BatchHeader),
    NoBatch,
}

pub(crate) struct SegmentReader {
    pub path: PathBuf,
    pub header: SegmentHeader,
    pub offset: u64,
    file: Box<dyn FileHandle>,
    buffer: Vec<u8>,
    buffer_offset: u64,
}

impl SegmentReader {
    pub fn open(folder: &Folder, options: &Options, number: u64) -> Result<Self, OpenError> {
        let path = folder.segment(number);
        let file = folder.open(&path, Access::Read)?;
        let length = file.length().map_err(|error| OpenError::io("read", &path, error))?;
        if length < HEADER_SPACE {
            return Err(OpenError::Header { path, reason: "the file is too short".to_owned() });
        }
        let mut buffer = vec![0; HEADER_SPACE as usize];
        read_exact_at(file.as_ref(), &mut buffer, 0).map_err(|error| OpenError::io_at("read", &path, 0, error))?;
        let header = segment_format::decode_header(&path, &buffer, number, length, options)?;
        Ok(Self { path, header, offset: HEADER_SPACE, file, buffer, buffer_offset: 0 })
    }

    fn fill(&mut self, offset: u64, length: usize) -> Result<usize, OpenError> {
        let buffered = self.buffer_offset..self.buffer_offset + self.buffer.len() as u64;
        if !(buffered.contains(&offset) && offset + length as u64 <= buffered.end) {
            let size = length.max(CHUNK).min((self.header.bytes - offset) as usize);
            self.buffer.resize(size, 0);
            self.buffer_offset = offset;
            if let Err(error) = read_exact_at(self.file.as_ref(), &mut self.buffer, offset) {
                self.buffer.clear();
                return Err(OpenError::io_at("read", &self.path, offset, error));
            }
        }
        Ok((offset - self.buffer_offset) as usize)
    }

    /// Returns the bytes of a batch with a payload of this length.
    fn framed_bytes(&self, length: usize) -> u64 {
        framed_bytes(length as u64, self.header.alignment)
    }

    pub fn next(&mut self) -> Result<SegmentEntry<'_>, OpenError> {
        if self.offset + self.header.alignment > self.header.bytes {
            return Ok(SegmentEntry::NoBatch);
        }
        let at = self.fill(self.offset, HEADER)?;
        let Some((header, payload_crc)) =
            batch_format::read_header(&self.buffer[at..at + HEADER], &self.header.identity)
        else {
            return Ok(SegmentEntry::NoBatch);
        };
        let length = header.length as usize;
        let end = self.offset + self.framed_bytes(length);
        if end > self.header.bytes {
            return Ok(SegmentEntry::TornBatch(header));
        }
        let at = self.fill(self.offset, HEADER + length)? + HEADER;
        if crc32fast::hash(&self.buffer[at..at + length]) != payload_crc {
            return Ok(SegmentEntry::TornBatch(header));
        }
        self.offset = end;
        Ok(SegmentEntry::Batch(header, &self.buffer[at..at + length]))
    }

    /// Returns the offset of the first valid batch header at or after `offset`.
    pub fn find_header(&mut self, mut offset: u64) -> Result<Option<u64>, OpenError> {
        let alignment = self.header.alignment;
        while offset + alignment <= self.header.bytes {
            let at = self.fill(offset, alignment as usize)?;
            for block in self.buffer[at..].chunks_exact(alignment as usize) {
                if batch_format::read_header(block, &self.header.identity).is_some() {
                    return Ok(Some(offset));
                }
                offset += alignment;
            }
        }
        Ok(None)
    }

    /// Returns the length of the damaged batch at the current offset, or 0 if there is none. If only the start of the
    /// header is readable, returns the alignment.
    pub fn torn_bytes(&mut self) -> Result<u64, OpenError> {
        let alignment = self.header.alignment;
        if self.offset + alignment > self.header.bytes {
            return Ok(0);
        }
        let at = self.fill(self.offset, HEADER)?;
        let start = &self.buffer[at..at + HEADER];
        Ok(match batch_format::read_header(start, &self.header.identity) {
            Some((header, _)) => self.framed_bytes(header.length as usize).min(self.header.bytes - self.offset),
            None if batch_format::begins_like_batch(start, &self.header.identity) => alignment,
            None => 0,
        })
    }
}
