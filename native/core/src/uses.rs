//! Uses of slots as they stand in an event: (slot, generation) pairs, packed.

/// (slot, generation) pairs as they stand in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uses<'a>(pub(crate) &'a [u8]);

impl<'a> Uses<'a> {
    /// Bytes of one use.
    pub(crate) const WIDTH: usize = 6;

    pub(crate) fn len(&self) -> u32 {
        (self.0.len() / Self::WIDTH) as u32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, u32)> + use<'a> {
        self.0.chunks_exact(Self::WIDTH).map(|use_| {
            (u16::from_le_bytes([use_[0], use_[1]]), u32::from_le_bytes([use_[2], use_[3], use_[4], use_[5]]))
        })
    }
}

/// Room for the uses of one party.
#[derive(Default)]
pub(crate) struct UseList {
    bytes: Vec<u8>,
}

impl UseList {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    pub(crate) fn push(&mut self, slot: u16, generation: u32) {
        self.bytes.extend_from_slice(&slot.to_le_bytes());
        self.bytes.extend_from_slice(&generation.to_le_bytes());
    }

    pub(crate) fn as_uses(&self) -> Uses<'_> {
        Uses(&self.bytes)
    }
}
