//! Limit on the bytes of bodies in memory, in all and for each client, so that one client cannot use all of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use hosting_matchmaker::ClientKey;

/// Bodies up to this size may exceed the budget by half, so that large bodies never block them.
pub const SMALL_BYTES: usize = 64 * 1024;
/// Divisor for the bytes that one client may have while half of the budget is in use.
const CLIENT_SHARE: usize = 8;

/// Smallest size of a buffer that the allocator returns to the system at once.
const FREED_BYTES_MIN: libc::c_int = 256 * 1024;

/// Lets the allocator return the memory of large bodies to the system. By default, it keeps this memory after the first
/// large buffer was freed. Growing bodies then take half as much again as the budget.
pub fn free_large_bodies_at_once() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call changes a number under the lock of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, FREED_BYTES_MIN);
    }
}

pub struct BodyBudget {
    total_max: usize,
    client_max: usize,
    /// Largest body that may exceed the budget.
    small_bytes: usize,
    held: Mutex<Held>,
    /// Bytes of gRPC messages, which are a part of `held`.
    of_calls: AtomicUsize,
}

#[derive(Default)]
struct Held {
    total: usize,
    by_client: HashMap<ClientKey, usize>,
}

impl Held {
    fn add(&mut self, client: ClientKey, bytes: usize) {
        if bytes > 0 {
            self.total += bytes;
            *self.by_client.entry(client).or_default() += bytes;
        }
    }
}

/// Which limit refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    Client,
    Total,
}

impl BodyBudget {
    /// The share of one client allows at least one body of `largest` bytes.
    pub fn new(total_max: usize, largest: usize) -> Arc<BodyBudget> {
        BodyBudget::with(total_max, largest, SMALL_BYTES)
    }

    /// A budget that no body may exceed.
    pub fn without_reserve(total_max: usize) -> Arc<BodyBudget> {
        BodyBudget::with(total_max, 0, 0)
    }

    fn with(total_max: usize, largest: usize, small_bytes: usize) -> Arc<BodyBudget> {
        let client_max = (total_max / CLIENT_SHARE).max(largest);
        Arc::new(BodyBudget {
            total_max: total_max.max(client_max),
            client_max,
            small_bytes,
            held: Mutex::default(),
            of_calls: AtomicUsize::new(0),
        })
    }

    pub fn held_bytes(&self) -> usize {
        self.held.lock().total
    }

    /// Returns the part of [`BodyBudget::held_bytes`] that is of gRPC.
    pub fn held_bytes_of_calls(&self) -> usize {
        self.of_calls.load(Ordering::Relaxed)
    }

    /// Returns a reservation without bytes.
    pub fn reserve(self: &Arc<Self>, client: ClientKey) -> Reservation {
        Reservation { budget: self.clone(), client, is_call: false, bytes: 0 }
    }

    /// Returns a reservation of a gRPC call without bytes.
    pub fn reserve_for_call(self: &Arc<Self>, client: ClientKey) -> Reservation {
        Reservation { budget: self.clone(), client, is_call: true, bytes: 0 }
    }

    /// Checks that a client has less than its share.
    pub fn check_room(&self, client: ClientKey) -> Result<(), Full> {
        self.check_room_in(&self.held.lock(), client)
    }

    fn check_room_in(&self, held: &Held, client: ClientKey) -> Result<(), Full> {
        if held.by_client.get(&client).is_some_and(|bytes| *bytes >= self.client_max) {
            return Err(Full::Client);
        }
        if held.total >= self.total_max { Err(Full::Total) } else { Ok(()) }
    }

    fn take(&self, client: ClientKey, more: usize, is_small: bool) -> Result<(), Full> {
        let mut held = self.held.lock();
        let of_client = held.by_client.get(&client).copied().unwrap_or_default() + more;
        let total = held.total + more;
        let [client_reserve, total_reserve] = if is_small { [self.client_max / 2, self.total_max / 2] } else { [0, 0] };
        if of_client > self.client_max + client_reserve && total > self.total_max / 2 {
            return Err(Full::Client);
        }
        if total > self.total_max + total_reserve {
            return Err(Full::Total);
        }
        held.by_client.insert(client, of_client);
        held.total = total;
        Ok(())
    }

    fn give_back(&self, client: ClientKey, bytes: usize) {
        let mut held = self.held.lock();
        held.total -= bytes;
        if let Some(of_client) = held.by_client.get_mut(&client) {
            *of_client -= bytes;
            if *of_client == 0 {
                held.by_client.remove(&client);
            }
        }
    }
}

/// Bytes that count for one client until the reservation is dropped.
pub struct Reservation {
    budget: Arc<BodyBudget>,
    client: ClientKey,
    is_call: bool,
    bytes: usize,
}

impl Reservation {
    /// Reserves `bytes` in all. Without room, the reservation stays as it is.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), Full> {
        if bytes > self.bytes {
            self.budget.take(self.client, bytes - self.bytes, bytes <= self.budget.small_bytes)?;
            if self.is_call {
                self.budget.of_calls.fetch_add(bytes - self.bytes, Ordering::Relaxed);
            }
            self.bytes = bytes;
        }
        Ok(())
    }

    pub fn grow_by(&mut self, bytes: usize) -> Result<(), Full> {
        self.grow_to(self.bytes + bytes)
    }

    /// Adds bytes that exist already, also above the limits. [`BodyBudget::check_room`] refuses further requests.
    pub fn add(&mut self, bytes: usize) {
        self.budget.held.lock().add(self.client, bytes);
        self.bytes += bytes;
    }

    /// Adds any number of bytes if the client has less than its share.
    pub fn add_if_room(&mut self, bytes: usize) -> Result<(), Full> {
        let mut held = self.budget.held.lock();
        self.budget.check_room_in(&held, self.client)?;
        held.add(self.client, bytes);
        self.bytes += bytes;
        Ok(())
    }

    /// Counts the bytes until they are dropped, beyond the limits too.
    pub fn hold(mut self, bytes: Bytes) -> Bytes {
        self.add(bytes.len().saturating_sub(self.bytes));
        Bytes::from_owner(HeldBytes { bytes, _reservation: self })
    }

    pub fn shrink_to(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.budget.give_back(self.client, self.bytes - bytes);
            if self.is_call {
                self.budget.of_calls.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
            }
            self.bytes = bytes;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

struct HeldBytes {
    bytes: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn client(number: u8) -> ClientKey {
        ClientKey::V4([127, 0, 0, number])
    }

    #[test]
    fn one_client_has_a_share_while_half_is_in_use() {
        let budget = BodyBudget::new(16 * MIB, MIB);
        let mut alone = budget.reserve(client(1));
        assert_eq!(alone.grow_to(8 * MIB), Ok(()));
        assert_eq!(alone.grow_to(8 * MIB + 1), Err(Full::Client));
        assert_eq!(budget.reserve(client(2)).grow_to(2 * MIB), Ok(()));
        assert_eq!(budget.reserve(client(2)).grow_to(2 * MIB + 1), Err(Full::Client));
        assert_eq!(budget.held_bytes(), 8 * MIB);
    }

    #[test]
    fn small_bodies_pass_when_the_budget_is_used_up() {
        let budget = BodyBudget::new(16 * MIB, MIB);
        let mut held: Vec<_> = (0..8).map(|number| budget.reserve(client(number))).collect();
        assert!(held.iter_mut().all(|one| one.grow_to(2 * MIB).is_ok()));
        assert_eq!(budget.reserve(client(9)).grow_to(SMALL_BYTES + 1), Err(Full::Total));
        assert_eq!(budget.reserve(client(9)).grow_to(SMALL_BYTES), Ok(()));
    }

    #[test]
    fn client_with_its_share_gets_no_further_answer() {
        let budget = BodyBudget::new(16 * MIB, MIB);
        let mut large = budget.reserve(client(1));
        assert_eq!(large.add_if_room(4 * MIB), Ok(()), "one answer may exceed the share");
        assert_eq!(budget.reserve(client(1)).add_if_room(1), Err(Full::Client));
        assert_eq!(budget.reserve(client(2)).add_if_room(1), Ok(()));
        let mut rest = budget.reserve(client(2));
        assert_eq!(rest.add_if_room(12 * MIB), Ok(()));
        assert_eq!(budget.reserve(client(3)).add_if_room(1), Err(Full::Total));
        drop((large, rest));
        assert_eq!(budget.reserve(client(1)).add_if_room(0), Ok(()));
        assert!(budget.held.lock().by_client.is_empty());
    }

    #[test]
    fn dropped_reservations_are_given_back() {
        let budget = BodyBudget::new(MIB, MIB);
        let mut reservation = budget.reserve(client(1));
        assert_eq!(reservation.grow_to(MIB), Ok(()));
        reservation.shrink_to(10);
        assert_eq!(budget.held_bytes(), 10);
        drop(reservation);
        assert_eq!(budget.held_bytes(), 0);
        assert!(budget.held.lock().by_client.is_empty());
    }

    #[test]
    fn bytes_of_calls_are_a_part_of_all() {
        let budget = BodyBudget::new(MIB, MIB);
        let (mut body, mut message) = (budget.reserve(client(1)), budget.reserve_for_call(client(1)));
        assert_eq!((body.grow_to(10), message.grow_to(5), message.grow_to(7)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((budget.held_bytes(), budget.held_bytes_of_calls()), (17, 7));
        drop(message);
        assert_eq!((budget.held_bytes(), budget.held_bytes_of_calls()), (10, 0));
    }
}
