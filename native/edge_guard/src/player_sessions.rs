//! Sessions of players at the counted ports of lobbies, by client address.
//!
//! The data plane matches the counts with the slots of the lobby. A port can require a slot: then the first session of an
//! address waits until the data plane has answered. Known addresses never wait, so they go on while the data plane is down.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hosting_client_addresses::ClientKey;
use tokio::sync::{Notify, watch};

/// Time for which an ended session still counts, so that a player can reconnect into the same slot.
pub const GRACE: Duration = Duration::from_secs(10);

/// Time for which an address that was asked about counts as one player, before its first session.
const ASKED_FOR: Duration = Duration::from_secs(30);

/// Time after a refusal in which the address is not asked about again.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Longest wait of a new connection for the data plane.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of addresses with a session, a grace period or a question, for each lobby.
const ADDRESSES_MAX: usize = 4_096;

/// Addresses of a lobby with their numbers of sessions. Addresses with a slot come first.
pub type SessionCounts = Vec<(ClientKey, u32)>;

/// Counted lobbies by their id.
#[derive(Debug, Default)]
pub struct PlayerSessionTable {
    by_owner: Mutex<BTreeMap<String, Arc<PlayerSessions>>>,
    /// Notified when an address is new or has another number of sessions.
    pub changed: Arc<Notify>,
}

impl PlayerSessionTable {
    /// Returns the sessions of a lobby, and creates them if the table does not have them.
    pub fn of_owner(&self, owner: &str, requires_slot: bool) -> Arc<PlayerSessions> {
        let mut by_owner = lock(&self.by_owner);
        let new = || {
            Arc::new(PlayerSessions {
                requires_slot,
                addresses: Mutex::default(),
                answers: watch::Sender::new(0),
                changed: self.changed.clone(),
            })
        };
        by_owner.entry(owner.to_owned()).or_insert_with(new).clone()
    }

    pub fn end(&self, owner: &str) {
        lock(&self.by_owner).remove(owner);
    }

    pub fn all(&self) -> Vec<(String, Arc<PlayerSessions>)> {
        lock(&self.by_owner).iter().map(|(owner, sessions)| (owner.clone(), sessions.clone())).collect()
    }
}

/// Sessions of the players of one lobby.
#[derive(Debug)]
pub struct PlayerSessions {
    requires_slot: bool,
    addresses: Mutex<HashMap<ClientKey, AddressState>>,
    /// Number of answers of the data plane.
    answers: watch::Sender<u64>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct AddressState {
    open: u32,
    /// Ends of the grace periods of ended sessions, in their order.
    held: Vec<Instant>,
    asked_until: Option<Instant>,
    verdict: Verdict,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    #[default]
    Unknown,
    HasSlot,
    Refused(Instant),
}

impl AddressState {
    fn sessions(&self) -> u32 {
        (self.open + self.held.len() as u32).max(u32::from(self.asked_until.is_some()))
    }

    fn expire(&mut self, now: Instant) {
        self.held.retain(|end| *end > now);
        self.asked_until = self.asked_until.filter(|until| *until > now);
        if matches!(self.verdict, Verdict::Refused(until) if until <= now) {
            self.verdict = Verdict::Unknown;
        }
    }
}

#[derive(Debug)]
pub enum Admission {
    /// The session counts, unless there are too many addresses.
    Admitted(Option<PlayerSession>),
    /// The data plane has not answered yet.
    Pending,
    Refused,
}

impl PlayerSessions {
    /// Begins a session of a client, unless its address needs an answer first.
    pub fn begin(self: &Arc<Self>, client: IpAddr) -> Admission {
        let (client, now) = (ClientKey::of(client), Instant::now());
        let mut addresses = lock(&self.addresses);
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&client) {
            return if self.requires_slot { Admission::Refused } else { Admission::Admitted(None) };
        }
        let state = addresses.entry(client).or_default();
        state.expire(now);
        match state.verdict {
            Verdict::Refused(_) if self.requires_slot => return Admission::Refused,
            Verdict::Unknown if self.requires_slot => {
                state.asked_until = Some(now + ASKED_FOR);
                self.changed.notify_one();
                return Admission::Pending;
            }
            Verdict::HasSlot | Verdict::Unknown | Verdict::Refused(_) => {}
        }
        self.open(addresses, client);
        Admission::Admitted(Some(PlayerSession { sessions: self.clone(), client }))
    }

    /// Continues a session that an older process has admitted.
    pub fn adopt(self: &Arc<Self>, client: IpAddr) -> PlayerSession {
        let client = ClientKey::of(client);
        let mut addresses = lock(&self.addresses);
        addresses.entry(client).or_default().verdict = Verdict::HasSlot;
        self.open(addresses, client);
        PlayerSession { sessions: self.clone(), client }
    }

    fn open(&self, mut addresses: MutexGuard<'_, HashMap<ClientKey, AddressState>>, client: ClientKey) {
        let state = addresses.entry(client).or_default();
        state.open += 1;
        state.asked_until = None;
        // The player has reconnected: this session continues an ended one.
        if !state.held.is_empty() {
            state.held.remove(0);
        }
        self.changed.notify_one();
    }

    /// Begins a session, and waits for the answer of the data plane if necessary. Returns `None` if it is refused.
    pub async fn admit(self: &Arc<Self>, client: IpAddr) -> Option<Option<PlayerSession>> {
        let mut answers = self.answers.subscribe();
        let end = tokio::time::Instant::now() + ADMISSION_TIMEOUT;
        loop {
            match self.begin(client) {
                Admission::Admitted(session) => return Some(session),
                Admission::Refused => return None,
                Admission::Pending => tokio::time::timeout_at(end, answers.changed()).await.ok()?.ok()?,
            }
        }
    }

    /// Reports whether an address has a session now, or needs none. Other traffic of its player is then forwarded.
    #[must_use]
    pub fn has_session(&self, client: IpAddr) -> bool {
        !self.requires_slot || lock(&self.addresses).get(&ClientKey::of(client)).is_some_and(|state| state.open > 0)
    }

    /// Returns the sessions of all addresses, and whether an address waits for an answer.
    #[must_use]
    pub fn counts(&self, now: Instant) -> (SessionCounts, bool) {
        let mut addresses = lock(&self.addresses);
        addresses.retain(|_, state| {
            state.expire(now);
            state.sessions() > 0 || matches!(state.verdict, Verdict::Refused(_))
        });
        let is_pending = |state: &AddressState| state.verdict == Verdict::Unknown;
        let has_pending = self.requires_slot && addresses.values().any(is_pending);
        let present = addresses.iter().filter(|(_, state)| state.sessions() > 0);
        let mut counts: Vec<_> =
            present.map(|(client, state)| (state.verdict != Verdict::HasSlot, *client, state.sessions())).collect();
        counts.sort_unstable();
        (counts.into_iter().map(|(_, client, sessions)| (client, sessions)).collect(), has_pending)
    }

    /// Takes the answer of the data plane: whether each address has a slot.
    pub fn answer(&self, counts: &SessionCounts, has_slot: &[bool], now: Instant) {
        let mut addresses = lock(&self.addresses);
        for ((client, _), has_slot) in counts.iter().zip(has_slot) {
            let Some(state) = addresses.get_mut(client) else { continue };
            // Open sessions go on, whatever has happened to the slot.
            let is_known = state.verdict == Verdict::HasSlot && state.open > 0;
            if *has_slot || is_known {
                state.verdict = Verdict::HasSlot;
            } else {
                state.verdict = Verdict::Refused(now + REFUSED_FOR);
                state.asked_until = None;
            }
        }
        drop(addresses);
        self.answers.send_modify(|answers| *answers += 1);
    }
}

/// An admitted session. It counts until it is dropped, and then for the grace period.
#[derive(Debug)]
pub struct PlayerSession {
    sessions: Arc<PlayerSessions>,
    client: ClientKey,
}

impl Drop for PlayerSession {
    fn drop(&mut self) {
        if let Some(state) = lock(&self.sessions.addresses).get_mut(&self.client) {
            state.open -= 1;
            state.held.push(Instant::now() + GRACE);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7));

    fn counts_of(sessions: &PlayerSessions, now: Instant) -> Vec<u32> {
        sessions.counts(now).0.into_iter().map(|(_, sessions)| sessions).collect()
    }

    fn admitted(sessions: &Arc<PlayerSessions>) -> PlayerSession {
        match sessions.begin(CLIENT) {
            Admission::Admitted(Some(session)) => session,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn new_address_waits_for_its_answer() {
        let sessions = PlayerSessionTable::default().of_owner("a", true);
        assert!(matches!(sessions.begin(CLIENT), Admission::Pending));
        let now = Instant::now();
        let (counts, has_pending) = sessions.counts(now);
        assert_eq!((counts.len(), has_pending), (1, true));
        sessions.answer(&counts, &[false], now);
        assert!(matches!(sessions.begin(CLIENT), Admission::Refused));
        assert_eq!(counts_of(&sessions, now), [0; 0], "a refused address has no sessions");
        assert_eq!(counts_of(&sessions, now + REFUSED_FOR), [0; 0]);
        assert!(matches!(sessions.begin(CLIENT), Admission::Pending), "it may have a reservation by now");
        sessions.answer(&counts, &[true], now);
        let (first, second) = (admitted(&sessions), admitted(&sessions));
        assert_eq!(counts_of(&sessions, Instant::now()), [2], "two players behind one address");
        drop((first, second));
    }

    #[test]
    fn ended_session_counts_for_the_grace_period() {
        let sessions = PlayerSessionTable::default().of_owner("a", false);
        drop(admitted(&sessions));
        assert_eq!(counts_of(&sessions, Instant::now()), [1]);
        let again = admitted(&sessions);
        assert_eq!(counts_of(&sessions, Instant::now()), [1], "the player has reconnected");
        drop(again);
        assert_eq!(counts_of(&sessions, Instant::now() + GRACE), [0; 0]);
    }

    #[test]
    fn mapped_address_is_the_ipv4_client() {
        let sessions = PlayerSessionTable::default().of_owner("a", false);
        let mapped: IpAddr = "::ffff:198.51.100.7".parse().unwrap();
        let Admission::Admitted(Some(_mapped)) = sessions.begin(mapped) else { panic!("not admitted") };
        let _plain = admitted(&sessions);
        assert_eq!(counts_of(&sessions, Instant::now()), [2]);
    }

    #[test]
    fn open_session_survives_the_loss_of_its_slot() {
        let sessions = PlayerSessionTable::default().of_owner("a", true);
        assert!(matches!(sessions.begin(CLIENT), Admission::Pending));
        let (counts, _) = sessions.counts(Instant::now());
        sessions.answer(&counts, &[true], Instant::now());
        let open = admitted(&sessions);
        sessions.answer(&counts, &[false], Instant::now());
        assert!(sessions.has_session(CLIENT));
        let _next = admitted(&sessions);
        drop(open);
    }

    fn flooded(requires_slot: bool) -> (Arc<PlayerSessions>, Vec<Admission>) {
        let sessions = PlayerSessionTable::default().of_owner("a", requires_slot);
        let addresses = (0..2 * ADDRESSES_MAX as u32).map(|number| std::net::Ipv4Addr::from_bits(number).into());
        let admissions = addresses.map(|address| sessions.begin(address)).collect();
        assert_eq!(counts_of(&sessions, Instant::now()).len(), ADDRESSES_MAX);
        (sessions, admissions)
    }

    #[test]
    fn flood_of_addresses_is_bounded() {
        let (sessions, _) = flooded(true);
        assert!(matches!(sessions.begin(CLIENT), Admission::Refused));
    }

    #[test]
    fn flood_of_addresses_keeps_no_player_out_if_none_needs_a_slot() {
        let (sessions, admissions) = flooded(false);
        assert!(admissions.iter().all(|admission| matches!(admission, Admission::Admitted(_))));
        assert!(matches!(sessions.begin(CLIENT), Admission::Admitted(None)));
    }
}
