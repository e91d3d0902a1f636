//! Holds: slots promised to requests that wait for a starting lobby. In memory only.
//!
//! Requests with the same idempotency key share a hold. A hold is dropped with its last request.

use std::collections::BTreeMap;

use crate::command::{ChannelId, HoldId, Idempotency, Source};

/// Slots promised in a starting lobby. They count towards all limits.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) lobby: u32,
    pub(crate) slots: u32,
    pub(crate) source: Source,
    pub(crate) idempotency: Option<Idempotency>,
    pub(crate) channels: Box<[ChannelId]>,
    waiters: u32,
}

pub(crate) struct HoldTable {
    last: u64,
    by_id: BTreeMap<HoldId, Hold>,
    by_key: BTreeMap<[u8; 16], HoldId>,
}

impl HoldTable {
    pub(crate) fn new() -> HoldTable {
        HoldTable { last: 0, by_id: BTreeMap::new(), by_key: BTreeMap::new() }
    }

    pub(crate) fn add(
        &mut self,
        lobby: u32,
        slots: u32,
        source: Source,
        key: Option<Idempotency>,
        channels: &[ChannelId],
    ) -> HoldId {
        self.last += 1;
        let id = HoldId(self.last);
        if let Some(idempotency) = key {
            self.by_key.insert(idempotency.key, id);
        }
        self.by_id.insert(id, Hold { lobby, slots, source, idempotency: key, channels: channels.into(), waiters: 1 });
        id
    }

    /// Returns the hold of a waiting request with this idempotency key.
    pub(crate) fn of_key(&self, key: &[u8; 16]) -> Option<(HoldId, &Hold)> {
        let id = *self.by_key.get(key)?;
        self.by_id.get(&id).map(|hold| (id, hold))
    }

    pub(crate) fn share(&mut self, id: HoldId) {
        if let Some(hold) = self.by_id.get_mut(&id) {
            hold.waiters += 1;
        }
    }

    pub(crate) fn release(&mut self, id: HoldId) -> Option<Hold> {
        let hold = self.by_id.get_mut(&id)?;
        hold.waiters -= 1;
        if hold.waiters > 0 {
            return None;
        }
        self.remove(id)
    }

    pub(crate) fn get(&self, id: HoldId) -> Option<&Hold> {
        self.by_id.get(&id)
    }

    pub(crate) fn remove(&mut self, id: HoldId) -> Option<Hold> {
        let hold = self.by_id.remove(&id)?;
        if let Some(idempotency) = &hold.idempotency {
            self.by_key.remove(&idempotency.key);
        }
        Some(hold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_hold_leaves_nothing() {
        let mut holds = HoldTable::new();
        let key = Idempotency { key: [1; 16], message: [2; 16] };
        let id = holds.add(0, 1, 0, Some(key), &[]);
        holds.share(id);
        assert!(holds.release(id).is_none(), "one still waits");
        assert!(holds.of_key(&key.key).is_some());
        assert!(holds.release(id).is_some());
        assert!(holds.by_id.is_empty() && holds.by_key.is_empty());
        assert_eq!(holds.release(id).map(|hold| hold.slots), None);
    }
}
