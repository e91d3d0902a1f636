//! Slot uses: one occupation of a slot by one player token, alone or encoded for journal events.

use crate::command::ChannelId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotUse {
    pub(crate) lobby: u32,
    pub(crate) slot: u16,
    pub(crate) generation: u32,
}

/// Encoded `(slot, generation)` pairs of one lobby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncodedSlotUses<'a>(pub(crate) &'a [u8]);

impl<'a> EncodedSlotUses<'a> {
    /// Bytes of one encoded `(slot, generation)`.
    pub(crate) const WIDTH: usize = 6;

    pub(crate) fn len(&self) -> u32 {
        (self.0.len() / Self::WIDTH) as u32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, u32)> + use<'a> {
        self.0.chunks_exact(Self::WIDTH).map(|pair| {
            (u16::from_le_bytes([pair[0], pair[1]]), u32::from_le_bytes([pair[2], pair[3], pair[4], pair[5]]))
        })
    }
}

#[derive(Default)]
pub(crate) struct SlotUseEncoder {
    bytes: Vec<u8>,
}

impl SlotUseEncoder {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    pub(crate) fn push(&mut self, slot: u16, generation: u32) {
        self.bytes.extend_from_slice(&slot.to_le_bytes());
        self.bytes.extend_from_slice(&generation.to_le_bytes());
    }

    pub(crate) fn encoded(&self) -> EncodedSlotUses<'_> {
        EncodedSlotUses(&self.bytes)
    }
}

/// Encoded `(channel, slot, generation)` triples: player tokens sent to event channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncodedDeliveries<'a>(pub(crate) &'a [u8]);

impl<'a> EncodedDeliveries<'a> {
    /// Bytes of one encoded `(channel, slot, generation)`.
    pub(crate) const WIDTH: usize = 16 + EncodedSlotUses::WIDTH;

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChannelId, u16, u32)> + use<'a> {
        self.0.chunks_exact(Self::WIDTH).filter_map(|delivery| {
            let (channel, pair) = delivery.split_first_chunk::<16>()?;
            let (slot, generation) = EncodedSlotUses(pair).iter().next()?;
            Some((*channel, slot, generation))
        })
    }
}
