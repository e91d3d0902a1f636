//! Byte reader and writer of events and images: little-endian numbers, and byte strings after their length.

use crate::command::Id;

/// Reason why recovery cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApplyError {
    /// This build does not know the event kind.
    UnknownKind(u8),
    /// The event breaks the named rule or contradicts the state.
    Malformed(&'static str),
}

impl core::fmt::Display for ApplyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ApplyError::UnknownKind(kind) => write!(f, "unknown event kind {kind}"),
            ApplyError::Malformed(rule) => write!(f, "malformed: {rule}"),
        }
    }
}

impl core::error::Error for ApplyError {}

/// Reader of encoded events and images. Short or malformed input is an error, never a panic.
pub(crate) struct Reader<'a> {
    remaining: &'a [u8],
}

const SHORT: ApplyError = ApplyError::Malformed("ends in the middle");

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { remaining: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.remaining.is_empty()
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], ApplyError> {
        if len > self.remaining.len() {
            return Err(SHORT);
        }
        let (bytes, remaining) = self.remaining.split_at(len);
        self.remaining = remaining;
        Ok(bytes)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], ApplyError> {
        let (bytes, remaining) = self.remaining.split_first_chunk::<N>().ok_or(SHORT)?;
        self.remaining = remaining;
        Ok(*bytes)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, ApplyError> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, ApplyError> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, ApplyError> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, ApplyError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn id(&mut self) -> Result<Id, ApplyError> {
        self.array().map(Id)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, ApplyError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ApplyError::Malformed("a flag is 0 or 1")),
        }
    }

    pub(crate) fn short_bytes(&mut self) -> Result<&'a [u8], ApplyError> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    pub(crate) fn long_bytes(&mut self) -> Result<&'a [u8], ApplyError> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, ApplyError> {
        core::str::from_utf8(self.short_bytes()?).map_err(|_| ApplyError::Malformed("text is not UTF-8"))
    }
}

pub(crate) struct Writer<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
}

impl Writer<'_> {
    #[inline]
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    #[inline]
    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn id(&mut self, id: Id) {
        self.raw(&id.0);
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.u8(u8::from(flag));
    }

    /// Writes up to 65,535 bytes after their length.
    pub(crate) fn short_bytes(&mut self, bytes: &[u8]) {
        // The API limits names, tags and addresses to far less.
        debug_assert!(bytes.len() <= usize::from(u16::MAX));
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.u16(len);
        self.raw(&bytes[..usize::from(len)]);
    }

    pub(crate) fn long_bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.raw(bytes);
    }
}
