//! Slots of lobbies: state, ends of the last 32 uses, and the arena that stores all slots.
//!
//! `free → reserved → connected → free`, or `connected → kept → free`. Each use has a generation number. With the stored
//! ends, a refusal of an old token names its true cause.

use crate::command::{Ms, Source};
use crate::timer_wheel::{NONE, TimerLinks, TimerNodes};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SlotState {
    Free = 0,
    Reserved = 1,
    Connected = 2,
    Kept = 3,
}

impl SlotState {
    pub(crate) fn from_byte(byte: u8) -> Option<SlotState> {
        [SlotState::Free, SlotState::Reserved, SlotState::Connected, SlotState::Kept].get(byte as usize).copied()
    }
}

/// Returns the index of a state in the counts of slots.
pub(crate) fn slot_count(state: SlotState) -> usize {
    match state {
        SlotState::Free => 0,
        SlotState::Reserved => 2,
        SlotState::Connected => 3,
        SlotState::Kept => 4,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SlotUseEnd {
    /// The token's deadline passed before the player connected.
    Expired = 0,
    /// The player connected during the use.
    Consumed = 1,
    /// The reservation was given up before the player connected.
    Released = 2,
    /// The lobby ended during the use.
    LobbyGone = 3,
}

impl SlotUseEnd {
    pub(crate) fn from_byte(byte: u8) -> Option<SlotUseEnd> {
        [SlotUseEnd::Expired, SlotUseEnd::Consumed, SlotUseEnd::Released, SlotUseEnd::LobbyGone]
            .get(byte as usize)
            .copied()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotUseStatus {
    NeverIssued,
    Live(SlotState),
    Ended(SlotUseEnd),
    /// The end of the use is no longer stored, because at least 32 later uses of the slot have ended.
    Forgotten,
}

const REMEMBERED_ENDS: u32 = 32;

/// One slot, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// [`SlotUseEnd`] of the last 32 uses, 2 bits each: generation `g` is at bit `2 * (g % 32)`.
    pub(crate) history: u64,
    pub(crate) source: Source,
    /// Deadline of a reserved or kept slot; connect time of a connected slot.
    pub(crate) time: Ms,
    pub(crate) links: TimerLinks,
    /// Number of the current use, or of the last use of a free slot. 0 before the first use.
    pub(crate) generation: u32,
    pub(crate) lobby: u32,
    pub(crate) reservation_entry: u32,
    pub(crate) connected_entry: u32,
    pub(crate) number: u16,
    pub(crate) next_free: u16,
    pub(crate) key_id: u16,
    pub(crate) state: SlotState,
    /// True if a heartbeat with a player list arrived after the player connected. Not durable.
    pub(crate) was_listed: bool,
}

const _: () = assert!(size_of::<Slot>() <= 64);

impl Slot {
    const EMPTY: Slot = Slot {
        history: 0,
        source: 0,
        time: 0,
        links: TimerLinks::UNLINKED,
        generation: 0,
        lobby: NONE,
        reservation_entry: NONE,
        connected_entry: NONE,
        number: 0,
        next_free: NO_SLOT,
        key_id: 0,
        state: SlotState::Free,
        was_listed: false,
    };

    pub(crate) fn remember(&mut self, end: SlotUseEnd) {
        let shift = (self.generation % REMEMBERED_ENDS) * 2;
        self.history = self.history & !(3 << shift) | (end as u64) << shift;
    }

    pub(crate) fn use_status(&self, generation: u32) -> SlotUseStatus {
        if generation == 0 || generation > self.generation {
            return SlotUseStatus::NeverIssued;
        }
        let is_live = self.state != SlotState::Free;
        if generation == self.generation && is_live {
            return SlotUseStatus::Live(self.state);
        }
        let last_ended = self.generation - u32::from(is_live);
        if last_ended - generation >= REMEMBERED_ENDS {
            return SlotUseStatus::Forgotten;
        }
        let bits = self.history >> ((generation % REMEMBERED_ENDS) * 2) & 3;
        SlotUseStatus::Ended(SlotUseEnd::from_byte(bits as u8).unwrap_or(SlotUseEnd::LobbyGone))
    }
}

pub(crate) const NO_SLOT: u16 = u16::MAX;

/// Maximum number of slots of a lobby. Slot numbers have 16 bits, and the last number means "none".
pub(crate) const MAX_CAPACITY: u32 = u16::MAX as u32;

const BLOCK: u32 = 4;
const PAGE_BITS: u32 = 10;
const PAGE: u32 = 1 << PAGE_BITS;

/// All slots of a shard, in pages that never move. Lobbies allocate blocks of four slots.
pub(crate) struct SlotArena {
    pages: Vec<Box<[Slot]>>,
    free_blocks: Vec<u32>,
    used: u32,
}

impl SlotArena {
    pub(crate) fn new() -> SlotArena {
        SlotArena { pages: Vec::new(), free_blocks: Vec::new(), used: 0 }
    }

    pub(crate) fn get(&self, at: u32) -> &Slot {
        &self.pages[(at >> PAGE_BITS) as usize][(at & (PAGE - 1)) as usize]
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> &mut Slot {
        &mut self.pages[(at >> PAGE_BITS) as usize][(at & (PAGE - 1)) as usize]
    }

    fn take_block(&mut self) -> u32 {
        if let Some(block) = self.free_blocks.pop() {
            return block;
        }
        let block = self.used;
        self.used += BLOCK;
        if block & (PAGE - 1) == 0 {
            self.pages.push(vec![Slot::EMPTY; PAGE as usize].into_boxed_slice());
        }
        block
    }

    fn give_back(&mut self, block: u32) {
        for at in block..block + BLOCK {
            *self.get_mut(at) = Slot::EMPTY;
        }
        self.free_blocks.push(block);
    }
}

impl TimerNodes for SlotArena {
    fn links(&mut self, node: u32) -> &mut TimerLinks {
        &mut self.get_mut(node).links
    }
    fn deadline(&self, node: u32) -> Ms {
        self.get(node).time
    }
}

/// Slots of one lobby, with a list of its free slots, longest free first.
#[derive(Debug)]
pub(crate) struct SlotTable {
    blocks: Vec<u32>,
    pub(crate) used: u32,
    pub(crate) free_head: u16,
    pub(crate) free_tail: u16,
    pub(crate) free_len: u32,
    /// Number of slots that have used all generation numbers, and are not used again.
    pub(crate) exhausted: u32,
}

impl SlotTable {
    pub(crate) fn new() -> SlotTable {
        SlotTable { blocks: Vec::new(), used: 0, free_head: NO_SLOT, free_tail: NO_SLOT, free_len: 0, exhausted: 0 }
    }

    /// Returns the arena index of a slot, or None if it was never used.
    pub(crate) fn locate(&self, number: u32) -> Option<u32> {
        (number < self.used).then(|| self.blocks[(number / BLOCK) as usize] + number % BLOCK)
    }

    /// Returns the free slots in allocation order: never-used slots ascending, then the others, longest free first.
    pub(crate) fn free_numbers<'a>(&'a self, arena: &'a SlotArena, capacity: u32) -> impl Iterator<Item = u16> + 'a {
        let mut next = self.free_head;
        let reused = core::iter::from_fn(move || {
            let number = next;
            let at = self.locate(u32::from(number))?;
            next = arena.get(at).next_free;
            Some(number)
        });
        (self.used as u16..capacity as u16).chain(reused)
    }

    /// Allocates slot `number` and returns its arena index. Returns None unless it is the first never-used or the
    /// longest free slot.
    pub(crate) fn take(&mut self, arena: &mut SlotArena, lobby: u32, number: u16) -> Option<u32> {
        if u32::from(number) == self.used {
            return Some(self.extend(arena, lobby));
        }
        if number != self.free_head {
            return None;
        }
        let at = self.locate(u32::from(number))?;
        let slot = arena.get_mut(at);
        self.free_head = slot.next_free;
        slot.next_free = NO_SLOT;
        if self.free_head == NO_SLOT {
            self.free_tail = NO_SLOT;
        }
        self.free_len -= 1;
        Some(at)
    }

    pub(crate) fn extend(&mut self, arena: &mut SlotArena, lobby: u32) -> u32 {
        if self.used.is_multiple_of(BLOCK) {
            self.blocks.push(arena.take_block());
        }
        let at = self.blocks[(self.used / BLOCK) as usize] + self.used % BLOCK;
        let slot = arena.get_mut(at);
        slot.lobby = lobby;
        slot.number = self.used as u16;
        self.used += 1;
        at
    }

    /// Appends a slot to the free list, unless it has used its last generation number.
    pub(crate) fn put_back(&mut self, arena: &mut SlotArena, at: u32) {
        let slot = arena.get(at);
        if slot.generation == u32::MAX {
            self.exhausted += 1;
            return;
        }
        let number = slot.number;
        match self.locate(u32::from(self.free_tail)) {
            Some(tail) => arena.get_mut(tail).next_free = number,
            None => self.free_head = number,
        }
        self.free_tail = number;
        self.free_len += 1;
    }

    pub(crate) fn clear(&mut self, arena: &mut SlotArena) {
        for block in self.blocks.drain(..) {
            arena.give_back(block);
        }
        *self = SlotTable::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_one_cache_line() {
        assert_eq!(size_of::<Slot>(), 64);
    }

    #[test]
    fn last_32_ends_are_remembered() {
        let mut slot = Slot::EMPTY;
        let ends = [SlotUseEnd::Expired, SlotUseEnd::Consumed, SlotUseEnd::Released, SlotUseEnd::LobbyGone];
        for generation in 1..=100u32 {
            slot.generation = generation;
            slot.state = SlotState::Reserved;
            assert_eq!(slot.use_status(generation), SlotUseStatus::Live(SlotState::Reserved));
            assert_eq!(slot.use_status(generation + 1), SlotUseStatus::NeverIssued);
            if generation > 33 {
                assert_eq!(slot.use_status(generation - 33), SlotUseStatus::Forgotten);
                assert_eq!(
                    slot.use_status(generation - 32),
                    SlotUseStatus::Ended(ends[(generation as usize - 32) % 4])
                );
            }
            slot.remember(ends[generation as usize % 4]);
            slot.state = SlotState::Free;
            for back in 0..32.min(generation) {
                let earlier = generation - back;
                assert_eq!(slot.use_status(earlier), SlotUseStatus::Ended(ends[earlier as usize % 4]), "{earlier}");
            }
        }
        assert_eq!(slot.use_status(0), SlotUseStatus::NeverIssued);
        assert_eq!(slot.use_status(68), SlotUseStatus::Forgotten);
    }

    #[test]
    fn never_used_slots_come_before_longest_free() {
        let mut arena = SlotArena::new();
        let mut table = SlotTable::new();
        for number in 0..3 {
            assert_eq!(table.free_numbers(&arena, 4).next(), Some(number));
            table.take(&mut arena, 0, number).expect("free");
        }
        for number in [2u32, 0] {
            let at = table.locate(number).expect("used");
            table.put_back(&mut arena, at);
        }
        assert_eq!(table.free_numbers(&arena, 4).collect::<Vec<_>>(), [3, 2, 0]);
        assert_eq!(table.take(&mut arena, 0, 0), None, "not its turn");
    }

    #[test]
    fn exhausted_slot_is_not_reused() {
        let mut arena = SlotArena::new();
        let mut table = SlotTable::new();
        let at = table.take(&mut arena, 0, 0).expect("free");
        arena.get_mut(at).generation = u32::MAX;
        table.put_back(&mut arena, at);
        assert_eq!((table.exhausted, table.free_len), (1, 0));
        assert_eq!(table.free_numbers(&arena, 1).next(), None);
    }
}
