//! Requests that run and requests that wait for their permits, in turns by client address and token.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use tokio::sync::oneshot;

use hosting_matchmaker::ClientKey;
use hosting_matchmaker::PUBLIC_TOKEN;

const ADDRESS_PART: usize = 2;
const TOKEN_PART: usize = 4;

/// The limit that keeps a request from its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overload {
    All,
    Address,
    Token,
    /// Requests of one address with a public token, or without a token, count like those of one token.
    NoOwnToken,
}

/// Counters of a request, next to that of all requests.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Keys {
    address: ClientKey,
    tenant: Tenant,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Tenant {
    Token(Arc<str>),
    NoOwnToken(ClientKey),
}

impl Keys {
    pub fn new(token: Option<&str>, client: ClientKey) -> Keys {
        // All players of a game have the same public token, so one player could use up its share.
        let own_token = token.filter(|token| !token.starts_with(PUBLIC_TOKEN));
        let tenant = own_token.map_or(Tenant::NoOwnToken(client), |token| Tenant::Token(token.into()));
        Keys { address: client, tenant }
    }
}

#[derive(Default)]
pub struct Counts {
    pub all: usize,
    pub by_address: HashMap<ClientKey, usize>,
    pub by_tenant: HashMap<Tenant, usize>,
}

/// A release looks only at lines that may run, at few full addresses, and at lines of full tenants that it blocks. So its
/// cost does not grow with the number of waiting requests.
///
/// If the address of an unblocked line gets full, the line keeps the permit of its tenant for itself. Other lines of the
/// tenant wait until the address or the tenant gets a permit back.
pub struct Queue<Permit> {
    pub running: Counts,
    pub waiting: Counts,
    pub lines: HashMap<Keys, Line<Permit>>,
    /// Client addresses with lines that are not blocked.
    pub addresses: HashMap<ClientKey, Address>,
    /// These addresses, by the numbers of their turns. A full address is skipped as a whole, however many lines it has.
    pub turns: BTreeMap<u64, ClientKey>,
    /// Lines that came, or had their turn, while their tenant was full. Each returned permit of the tenant unblocks one.
    pub blocked: HashMap<Tenant, BTreeMap<u64, Keys>>,
    /// The last number of a request or of a turn.
    last_number: u64,
}

/// Waiting requests with the same keys.
pub struct Line<Permit> {
    /// Its number among the lines of its address, or among the blocked lines of its tenant.
    turn: u64,
    is_blocked: bool,
    /// By their numbers, in order of arrival.
    requests: BTreeMap<u64, oneshot::Sender<Permit>>,
}

pub struct Address {
    turn: u64,
    /// The first line gets the next permit of the address, and moves to the end.
    lines: BTreeMap<u64, Keys>,
}

// A permit has no default.
impl<Permit> Default for Queue<Permit> {
    fn default() -> Queue<Permit> {
        Queue {
            running: Counts::default(),
            waiting: Counts::default(),
            lines: HashMap::new(),
            addresses: HashMap::new(),
            turns: BTreeMap::new(),
            blocked: HashMap::new(),
            last_number: 0,
        }
    }
}

impl<Permit> Queue<Permit> {
    /// Counts a request as running, if none with the same keys waits and no limit is reached.
    pub fn start(&mut self, keys: &Keys, most: usize) -> bool {
        let may_run = !self.lines.contains_key(keys) && self.running.full_limit(keys, most).is_none();
        if may_run {
            self.running.add(keys);
        }
        may_run
    }

    /// Ends a running request.
    pub fn end(&mut self, keys: &Keys, most: usize) {
        self.running.remove(keys);
        self.unblock_one(&keys.tenant, most);
    }

    /// Returns the limit that keeps a request from running.
    pub fn reached_limit(&self, keys: &Keys, most: usize) -> Overload {
        self.running.full_limit(keys, most).unwrap_or(Overload::All)
    }

    /// `most` limits the waiting requests. A client address without one may exceed the limit of all. Otherwise a few
    /// addresses could fill the queue, and no other one would get a turn.
    pub fn may_wait(&self, keys: &Keys, most: usize) -> bool {
        match self.waiting.full_limit(keys, most) {
            None => true,
            Some(Overload::All) => {
                !self.waiting.by_address.contains_key(&keys.address) && !self.waiting.is_tenant_full(&keys.tenant, most)
            }
            Some(_) => false,
        }
    }

    fn take_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Returns the number of the request, and its turn.
    pub fn enqueue(&mut self, keys: &Keys, most: usize) -> (u64, oneshot::Receiver<Permit>) {
        let (sender, granted) = oneshot::channel();
        let number = self.take_number();
        self.waiting.add(keys);
        if !self.lines.contains_key(keys) {
            self.lines.insert(keys.clone(), Line { turn: 0, is_blocked: false, requests: BTreeMap::new() });
            if self.running.is_tenant_full(&keys.tenant, most) {
                self.block(keys);
            } else {
                self.add_turn(keys);
            }
        }
        if let Some(line) = self.lines.get_mut(keys) {
            line.requests.insert(number, sender);
        }
        (number, granted)
    }

    /// Counts the next request that may run as running.
    pub fn next_turn(&mut self, most: usize) -> Option<(Keys, oneshot::Sender<Permit>)> {
        loop {
            let keys = self.next_line(most)?.clone();
            self.remove_turn(&keys);
            if self.running.is_tenant_full(&keys.tenant, most) {
                self.block(&keys);
                continue;
            }
            let line = self.lines.get_mut(&keys)?;
            let (_, sender) = line.requests.pop_first()?;
            if line.requests.is_empty() {
                self.lines.remove(&keys);
            } else {
                self.add_turn(&keys);
            }
            self.move_to_end(keys.address);
            self.waiting.remove(&keys);
            self.running.add(&keys);
            return Some((keys, sender));
        }
    }

    fn next_line(&self, most: usize) -> Option<&Keys> {
        if self.running.all >= most {
            return None;
        }
        let address = self.turns.values().find(|address| !self.running.is_address_full(address, most))?;
        self.addresses[address].lines.values().next()
    }

    /// Gives the last turn of its address to a line.
    fn add_turn(&mut self, keys: &Keys) {
        let turn = self.take_number();
        if let Some(line) = self.lines.get_mut(keys) {
            (line.turn, line.is_blocked) = (turn, false);
        }
        let new_address = || Address { turn, lines: BTreeMap::new() };
        let address = self.addresses.entry(keys.address).or_insert_with(new_address);
        address.lines.insert(turn, keys.clone());
        self.turns.entry(address.turn).or_insert(keys.address);
    }

    /// Removes the turn of a line that is not blocked.
    fn remove_turn(&mut self, keys: &Keys) {
        let (Some(line), Some(address)) = (self.lines.get(keys), self.addresses.get_mut(&keys.address)) else { return };
        address.lines.remove(&line.turn);
        if address.lines.is_empty() {
            self.turns.remove(&address.turn);
            self.addresses.remove(&keys.address);
        }
    }

    fn move_to_end(&mut self, client: ClientKey) {
        let turn = self.take_number();
        let Some(address) = self.addresses.get_mut(&client) else { return };
        self.turns.remove(&address.turn);
        self.turns.insert(turn, client);
        address.turn = turn;
    }

    fn block(&mut self, keys: &Keys) {
        let turn = self.take_number();
        if let Some(line) = self.lines.get_mut(keys) {
            (line.turn, line.is_blocked) = (turn, true);
            self.blocked.entry(keys.tenant.clone()).or_default().insert(turn, keys.clone());
        }
    }

    /// Unblocks the first line of a tenant, if possible one of an address that is not full.
    fn unblock_one(&mut self, tenant: &Tenant, most: usize) {
        let Some(blocked) = self.blocked.get_mut(tenant) else { return };
        let may_run = |keys: &&Keys| !self.running.is_address_full(&keys.address, most);
        let Some(keys) = blocked.values().find(may_run).or_else(|| blocked.values().next()).cloned() else { return };
        self.remove_blocked(&keys);
        self.add_turn(&keys);
    }

    fn remove_blocked(&mut self, keys: &Keys) {
        let (Some(line), Some(blocked)) = (self.lines.get(keys), self.blocked.get_mut(&keys.tenant)) else { return };
        blocked.remove(&line.turn);
        if blocked.is_empty() {
            self.blocked.remove(&keys.tenant);
        }
    }

    /// Removes a request that gives up, if it still waits.
    pub fn leave(&mut self, keys: &Keys, number: u64, most: usize) {
        let Some(line) = self.lines.get_mut(keys) else { return };
        if line.requests.remove(&number).is_none() {
            return;
        }
        self.waiting.remove(keys);
        if !line.requests.is_empty() {
            return;
        }
        if line.is_blocked {
            self.remove_blocked(keys);
        } else {
            self.remove_turn(keys);
            // Another line may use the permit for which this one was unblocked.
            self.unblock_one(&keys.tenant, most);
        }
        self.lines.remove(keys);
    }
}

impl Counts {
    fn add(&mut self, keys: &Keys) {
        self.all += 1;
        *self.by_address.entry(keys.address).or_default() += 1;
        *self.by_tenant.entry(keys.tenant.clone()).or_default() += 1;
    }

    fn remove(&mut self, keys: &Keys) {
        self.all -= 1;
        decrement(&mut self.by_address, &keys.address);
        decrement(&mut self.by_tenant, &keys.tenant);
    }

    fn is_address_full(&self, address: &ClientKey, most: usize) -> bool {
        self.by_address.get(address).is_some_and(|count| *count >= (most / ADDRESS_PART).max(1))
    }

    fn is_tenant_full(&self, tenant: &Tenant, most: usize) -> bool {
        self.by_tenant.get(tenant).is_some_and(|count| *count >= (most / TOKEN_PART).max(1))
    }

    /// Returns the reached limit, first that of all requests. A token is named before its address.
    fn full_limit(&self, keys: &Keys, most: usize) -> Option<Overload> {
        if self.all >= most {
            Some(Overload::All)
        } else if self.is_tenant_full(&keys.tenant, most) {
            Some(if matches!(keys.tenant, Tenant::Token(_)) { Overload::Token } else { Overload::NoOwnToken })
        } else {
            self.is_address_full(&keys.address, most).then_some(Overload::Address)
        }
    }
}

fn decrement<Key: Hash + Eq>(counts: &mut HashMap<Key, usize>, key: &Key) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
