//! Traffic counters of lobbies and servers, and the table in which the administration server reads them.
//!
//! Bytes are those that a game server receives and sends: without TLS, PROXY headers, and the headers of TCP, UDP and IP.
//! Packets are datagrams. All ports of a lobby or server have the same counters.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use crate::client_sessions::{ClientSessions, OwnerSessions};
use crate::metrics::{Counter, Direction, LabelSet};

/// Time for which the table keeps the counters of an ended owner, so that a reader gets the last values.
const KEPT_AFTER_END: Duration = Duration::from_secs(60);

const ENDED_MAX: usize = 4_096;

pub const PAGE_OWNERS: usize = 1_024;

#[derive(Debug, Default)]
pub struct Traffic {
    bytes: [Counter; 2],
    packets: [Counter; 2],
    pub sessions: Arc<ClientSessions>,
}

impl Traffic {
    pub fn add_bytes(&self, direction: Direction, bytes: u64) {
        self.bytes[direction.number()].add(bytes);
    }

    pub fn add_packets(&self, direction: Direction, packets: u64, bytes: u64) {
        self.packets[direction.number()].add(packets);
        self.add_bytes(direction, bytes);
    }

    #[must_use]
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.bytes[direction.number()].value()
    }

    #[must_use]
    pub fn packets(&self, direction: Direction) -> u64 {
        self.packets[direction.number()].value()
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct OwnerTraffic {
    pub owner_id: String,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub received_packets: u64,
    pub sent_packets: u64,
}

/// Part of the table in the order of owners.
#[derive(Debug, Serialize)]
pub struct TrafficPage<'a> {
    /// Name of the counters. All counters of another series began at 0.
    pub series: &'a str,
    pub owners: Vec<OwnerTraffic>,
    /// True if more owners follow the last one.
    pub has_more: bool,
}

/// Sessions of some owners.
#[derive(Debug, Serialize)]
pub struct SessionsReport {
    /// Age of this process, which does not know all earlier sessions.
    pub age_ms: u64,
    /// Without the owners that the table does not have.
    pub owners: Vec<OwnerSessions>,
}

#[derive(Debug)]
pub struct TrafficTable {
    series: String,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by_owner: BTreeMap<String, Entry>,
    /// Ends in their order. An owner that has routes again is skipped.
    ended: VecDeque<(Instant, String)>,
}

#[derive(Debug, Default)]
struct Entry {
    traffic: Arc<Traffic>,
    end: Option<Instant>,
}

impl Default for TrafficTable {
    fn default() -> Self {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let series = format!("{:x}-{:x}", std::process::id(), started.as_nanos());
        Self { series, began: Instant::now(), state: Mutex::default() }
    }
}

impl TrafficTable {
    /// Returns the counters of an owner, and creates them if the table does not have them.
    pub fn of_owner(&self, owner: &str) -> Arc<Traffic> {
        let mut state = self.lock();
        if let Some(entry) = state.by_owner.get_mut(owner) {
            entry.end = None;
            return entry.traffic.clone();
        }
        state.by_owner.entry(owner.to_owned()).or_default().traffic.clone()
    }

    /// Lets the table drop the counters of an owner after a time, or earlier if many owners end.
    pub fn end(&self, owner: &str) {
        let mut state = self.lock();
        let now = Instant::now();
        let Some(entry) = state.by_owner.get_mut(owner).filter(|entry| entry.end.is_none()) else { return };
        entry.end = Some(now);
        state.ended.push_back((now, owner.to_owned()));
        state.drop_old(now);
    }

    /// Returns the counters of the next owners after `after`.
    pub fn page(&self, after: &str, owners_max: usize) -> TrafficPage<'_> {
        let mut state = self.lock();
        state.drop_old(Instant::now());
        let mut following = state.by_owner.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let owners = following.by_ref().take(owners_max).map(|(owner, entry)| read(owner, &entry.traffic)).collect();
        TrafficPage { series: &self.series, owners, has_more: following.next().is_some() }
    }

    pub fn sessions<'a>(&self, owners: impl Iterator<Item = &'a str>) -> SessionsReport {
        let state = self.lock();
        let read = |owner: &str| state.by_owner.get(owner).map(|entry| entry.traffic.sessions.read(owner));
        let age_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        SessionsReport { age_ms, owners: owners.filter_map(read).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn drop_old(&mut self, now: Instant) {
        while let Some((end, owner)) = self.ended.front()
            && (self.ended.len() > ENDED_MAX || now.duration_since(*end) >= KEPT_AFTER_END)
        {
            if self.by_owner.get(owner).is_some_and(|entry| entry.end == Some(*end)) {
                self.by_owner.remove(owner);
            }
            self.ended.pop_front();
        }
    }
}

fn read(owner: &str, traffic: &Traffic) -> OwnerTraffic {
    OwnerTraffic {
        owner_id: owner.to_owned(),
        received_bytes: traffic.bytes(Direction::In),
        sent_bytes: traffic.bytes(Direction::Out),
        received_packets: traffic.packets(Direction::In),
        sent_packets: traffic.packets(Direction::Out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_contain_each_owner_once() {
        let table = TrafficTable::default();
        for owner in ["b", "a", "c"] {
            table.of_owner(owner).add_packets(Direction::In, 1, 10);
        }
        let mut owners = Vec::new();
        loop {
            let page = table.page(owners.last().map_or("", String::as_str), 2);
            owners.extend(page.owners.iter().map(|owner| owner.owner_id.clone()));
            if !page.has_more {
                break;
            }
        }
        assert_eq!(owners, ["a", "b", "c"]);
    }

    #[test]
    fn ended_owners_are_kept_up_to_a_number() {
        let table = TrafficTable::default();
        for number in 0..=ENDED_MAX {
            let owner = number.to_string();
            table.of_owner(&owner).add_bytes(Direction::Out, 5);
            table.end(&owner);
        }
        let page = table.page("", usize::MAX);
        assert_eq!(page.owners.len(), ENDED_MAX);
        assert!(page.owners.iter().all(|owner| owner.owner_id != "0" && owner.sent_bytes == 5));
    }

    #[test]
    fn owner_with_new_routes_keeps_its_counters() {
        let table = TrafficTable::default();
        table.of_owner("a").add_bytes(Direction::In, 1);
        table.end("a");
        table.of_owner("a").add_bytes(Direction::In, 2);
        for number in 0..=ENDED_MAX {
            table.of_owner(&number.to_string());
            table.end(&number.to_string());
        }
        assert_eq!(table.page("", usize::MAX).owners.last().unwrap().received_bytes, 3);
    }
}
