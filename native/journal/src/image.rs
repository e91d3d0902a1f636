//! Image files: the state after the last event of a closed segment, with one checksum. [`RecoverableState`] defines the content.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::batch_format::{FieldReader, FieldWriter, read_clock_record, write_clock};
use crate::error::OpenError;
use crate::files::{Access, BYTES_PER_SYNC, FileHandle, read_exact_at, write_all_at};
use crate::folder::Folder;
use crate::lsn::Lsn;
use crate::options::{Options, RecoverableState};
use crate::segment_format::{self, HEADER_SPACE};
use crate::service_clock::ClockRecord;

const MAGIC: &[u8; 8] = b"HJIMAGE1";
const VERSION: u32 = 1;
const END_MAGIC: &[u8; 8] = b"HJIMGEND";
const FIXED: usize = 128;
const TRAILER: usize = 20;
const CHUNK: usize = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImagePosition {
    pub lsn: Lsn,
    pub sequence: u64,
    /// Number of the last segment that the image covers. The log continues at the start of the next segment.
    pub segment: u64,
    pub epoch: u64,
    pub clock: ClockRecord,
}

fn encode_header(options: &Options, position: &ImagePosition) -> Vec<u8> {
    let mut buffer = vec![0; HEADER_SPACE as usize];
    let end = buffer.len() - 4;
    let mut fields = FieldWriter { bytes: &mut buffer, at: 0 };
    fields.put(MAGIC);
    fields.put(&VERSION.to_le_bytes());
    fields.put(&options.shard.to_le_bytes());
    fields.put(&[0; 2]);
    fields.put(&position.lsn.to_le_bytes());
    fields.put(&position.sequence.to_le_bytes());
    fields.put(&position.segment.to_le_bytes());
    fields.put(&position.epoch.to_le_bytes());
    write_clock(&mut fields, &position.clock);
    fields.at = FIXED;
    segment_format::write_kinds(&mut fields, options.kinds);
    let crc = crc32fast::hash(&buffer[..end]);
    buffer[end..].copy_from_slice(&crc.to_le_bytes());
    buffer
}

fn decode_header(path: &Path, buffer: &[u8], options: &Options) -> Result<ImagePosition, OpenError> {
    let damaged = |reason: &str| OpenError::Image { path: path.to_owned(), reason: reason.to_owned() };
    let (content, crc) = buffer.split_at(HEADER_SPACE as usize - 4);
    let mut fields = FieldReader { bytes: content };
    if fields.take(8) != MAGIC {
        return Err(damaged("not an image"));
    }
    let version = fields.u32();
    if version != VERSION {
        return Err(OpenError::Version { path: path.to_owned(), found: version, known: VERSION });
    }
    if crc32fast::hash(content).to_le_bytes() != crc {
        return Err(damaged("the checksum of its header is wrong"));
    }
    let shard = fields.u16();
    fields.take(2);
    if shard != options.shard {
        return Err(OpenError::Shard { path: path.to_owned(), found: shard, expected: options.shard });
    }
    let position = ImagePosition {
        lsn: fields.u64(),
        sequence: fields.u64(),
        segment: fields.u64(),
        epoch: fields.u64(),
        clock: read_clock_record(&mut fields),
    };
    let kinds = segment_format::read_kinds(&mut FieldReader { bytes: &content[FIXED..] })
        .ok_or_else(|| damaged("its table of event kinds is cut short"))?;
    segment_format::check_kind_names(path, &kinds, options)?;
    Ok(position)
}

struct OpenedImage {
    path: PathBuf,
    file: Box<dyn FileHandle>,
    header: Vec<u8>,
    position: ImagePosition,
}

fn open(folder: &Folder, options: &Options, lsn: Lsn) -> Result<OpenedImage, OpenError> {
    let path = folder.image(lsn);
    let file = folder.open(&path, Access::Read)?;
    let mut header = vec![0; HEADER_SPACE as usize];
    read_exact_at(file.as_ref(), &mut header, 0).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => OpenError::Image { path: path.clone(), reason: "it is too short".to_owned() },
        _ => OpenError::io_at("read", &path, 0, error),
    })?;
    let position = decode_header(&path, &header, options)?;
    if position.lsn != lsn {
        let reason = format!("its header says event {}", position.lsn);
        return Err(OpenError::Image { path, reason });
    }
    Ok(OpenedImage { path, file, header, position })
}

pub(crate) fn read_position(folder: &Folder, options: &Options, lsn: Lsn) -> Result<(ImagePosition, u64), OpenError> {
    let opened = open(folder, options, lsn)?;
    let length = opened.file.length().map_err(|error| OpenError::io("read", &opened.path, error))?;
    Ok((opened.position, length))
}

pub(crate) struct Image {
    pub position: ImagePosition,
    pub path: PathBuf,
    content: Vec<u8>,
}

impl Image {
    pub fn read(folder: &Folder, options: &Options, lsn: Lsn) -> Result<Self, OpenError> {
        let OpenedImage { path, file, header, position } = open(folder, options, lsn)?;
        let mut content = Vec::new();
        check_content(&path, file.as_ref(), &header, Some(&mut content))?;
        Ok(Self { position, path, content })
    }

    pub fn load(&self, state: &mut dyn RecoverableState) -> Result<(), OpenError> {
        state.load_image(&self.content).map_err(|reason| OpenError::Image { path: self.path.clone(), reason })
    }
}

fn check_content(
    path: &Path,
    file: &dyn FileHandle,
    header: &[u8],
    mut keep: Option<&mut Vec<u8>>,
) -> Result<(), OpenError> {
    let damaged = |reason: &str| OpenError::Image { path: path.to_owned(), reason: reason.to_owned() };
    let length = file.length().map_err(|error| OpenError::io("read", path, error))?;
    let Some(content_length) = length.checked_sub(HEADER_SPACE + TRAILER as u64) else {
        return Err(damaged("it is too short"));
    };
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    let mut chunk = Vec::new();
    if let Some(keep) = keep.as_deref_mut() {
        *keep = vec![0; content_length as usize];
    } else {
        chunk = vec![0; CHUNK];
    }
    let mut done = 0;
    while done < content_length {
        let size = (CHUNK as u64).min(content_length - done) as usize;
        let target = match keep.as_deref_mut() {
            Some(keep) => &mut keep[done as usize..done as usize + size],
            None => &mut chunk[..size],
        };
        let offset = HEADER_SPACE + done;
        read_exact_at(file, target, offset).map_err(|error| OpenError::io_at("read", path, offset, error))?;
        hasher.update(target);
        done += size as u64;
    }
    check_trailer(path, file, content_length, hasher.finalize())
}

fn check_trailer(path: &Path, file: &dyn FileHandle, content_length: u64, crc: u32) -> Result<(), OpenError> {
    let damaged = |reason: &str| OpenError::Image { path: path.to_owned(), reason: reason.to_owned() };
    let mut trailer = [0; TRAILER];
    let offset = HEADER_SPACE + content_length;
    read_exact_at(file, &mut trailer, offset).map_err(|error| OpenError::io_at("read", path, offset, error))?;
    let mut fields = FieldReader { bytes: &trailer };
    if fields.take(8) != END_MAGIC || fields.u64() != content_length {
        return Err(damaged("its end is missing"));
    }
    if fields.u32() != crc {
        return Err(damaged("its checksum is wrong"));
    }
    Ok(())
}

struct ImageWriter<'a> {
    file: &'a dyn FileHandle,
    offset: u64,
    synced: u64,
    buffer: Vec<u8>,
    hasher: crc32fast::Hasher,
}

impl ImageWriter<'_> {
    fn send(&mut self) -> io::Result<()> {
        write_all_at(self.file, &self.buffer, self.offset)?;
        self.hasher.update(&self.buffer);
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        if self.offset - self.synced >= BYTES_PER_SYNC {
            self.file.sync_data()?;
            self.synced = self.offset;
        }
        Ok(())
    }
}

impl Write for ImageWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

/// Writes an image under a temporary name, verifies it and renames it. Returns the path and the length in bytes.
pub(crate) fn write(
    folder: &Folder,
    options: &Options,
    position: &ImagePosition,
    state: &dyn RecoverableState,
) -> Result<(PathBuf, u64), OpenError> {
    let unfinished = folder.unfinished("image");
    let result = write_unfinished(folder, &unfinished, options, position, state);
    let finish = |length| {
        let path = folder.image(position.lsn);
        folder.rename(&unfinished, &path)?;
        folder.sync()?;
        Ok((path, length))
    };
    result.and_then(finish).inspect_err(|_| {
        // Frees the disk space. If the removal fails, the next image overwrites the file, or the next start removes it.
        let _ = folder.files.unlink(&unfinished);
    })
}

fn write_unfinished(
    folder: &Folder,
    path: &Path,
    options: &Options,
    position: &ImagePosition,
    state: &dyn RecoverableState,
) -> Result<u64, OpenError> {
    let write_error = |error| OpenError::io("write", path, error);
    let file = folder.open(path, Access::Create)?;
    let header = encode_header(options, position);
    let mut writer = ImageWriter {
        file: file.as_ref(),
        offset: 0,
        synced: 0,
        buffer: Vec::with_capacity(2 * CHUNK),
        hasher: crc32fast::Hasher::new(),
    };
    writer.write_all(&header).map_err(write_error)?;
    state.write_image(&mut writer).map_err(write_error)?;
    writer.send().map_err(write_error)?;
    let mut trailer = [0; TRAILER];
    let mut fields = FieldWriter { bytes: &mut trailer, at: 0 };
    fields.put(END_MAGIC);
    fields.put(&(writer.offset - HEADER_SPACE).to_le_bytes());
    fields.put(&writer.hasher.clone().finalize().to_le_bytes());
    let length = writer.offset + TRAILER as u64;
    write_all_at(file.as_ref(), &trailer, writer.offset).map_err(write_error)?;
    file.sync_data().map_err(|error| OpenError::io("sync", path, error))?;
    check_content(path, file.as_ref(), &header, None)?;
    Ok(length)
}
