//! Port leases of lobbies and dynamic servers, with a change feed of routes for the edge-guard of each node.
//!
//! `requested → bound → over → returned`: a requested lease has no node and no numbers. On a single machine, and in the
//! node with the empty name, a lease is bound from the start. The owner of an `over` lease has ended or has moved, but
//! edge-guard may still have its sockets open.
//!
//! A lease belongs to one node. If it moves to another node, the earlier node keeps an `over` lease of the same owner.
//! So an owner and a node identify an `over` lease. Its numbers stay blocked at that node until the edge-guard of that
//! node confirms that it closed them. If the lease comes back before, it gets these numbers again.

use std::collections::BTreeMap;

use crate::change_feed::ChangeFeed;
use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{
    Backend, Id, LeaseNode, LeasedPorts, Lsn, Ms, PortExposure, PortRange, Protocol, Route, RouteChanges,
};
use crate::lease_definition::{
    BAD_LEASE, LeaseDefinition, decode_backends, decode_lease, encode_backends, encode_lease,
};
use crate::node_ports::NodePorts;

/// Name of the only node of a single machine.
pub const LOCAL_NODE: &str = "";

#[derive(Debug)]
pub(crate) struct PortLease {
    pub(crate) definition: LeaseDefinition,
    /// None until the lease is bound.
    pub(crate) node: Option<LeaseNode>,
    /// LSN of the last event that changed the lease.
    pub(crate) changed: Lsn,
}

impl PortLease {
    pub(crate) fn is_at(&self, node: &str) -> bool {
        self.node.as_ref().is_some_and(|own| *own.name == *node)
    }

    /// Returns true if the lease has ports, but no node has them yet.
    pub(crate) fn awaits_node(&self) -> bool {
        self.node.is_none() && !self.definition.ports.is_empty()
    }

    pub(crate) fn leased_ports(&self) -> LeasedPorts {
        LeasedPorts { ports: self.definition.ports.clone(), node: self.node.clone().unwrap_or_default() }
    }
}

#[derive(Debug)]
pub(crate) struct PortLeaseTable {
    range: PortRange,
    is_live: bool,
    /// Requested and bound leases.
    live: BTreeMap<Id, PortLease>,
    /// Leases that are over, one for each node of the owner.
    over: BTreeMap<Id, Vec<PortLease>>,
    /// Nodes with leases or quarantine, and always the local node.
    nodes: BTreeMap<Box<str>, NodePorts>,
    newest_change: Lsn,
    /// Newest change when a node was last dropped. Readers that have not seen it may have routes of a dropped node.
    dropped_changes: Lsn,
}

impl PortLeaseTable {
    pub(crate) fn new(range: PortRange) -> PortLeaseTable {
        PortLeaseTable {
            range,
            is_live: true,
            live: BTreeMap::new(),
            over: BTreeMap::new(),
            nodes: BTreeMap::from([(LOCAL_NODE.into(), NodePorts::live(range))]),
            newest_change: 0,
            dropped_changes: 0,
        }
    }

    pub(crate) fn enter_recovery(&mut self) {
        self.is_live = false;
        self.nodes.values_mut().for_each(NodePorts::drop_pools);
    }

    pub(crate) fn finish_recovery(&mut self, now: Ms) {
        self.is_live = true;
        self.nodes.values_mut().for_each(NodePorts::create_pools);
        for lease in self.live.values().chain(self.over.values().flatten()) {
            let Some(ports) = lease.node.as_ref().and_then(|node| self.nodes.get_mut(&node.name)) else { continue };
            lease.definition.numbers().for_each(|(protocol, number)| ports.take(protocol, number));
        }
        self.nodes.values_mut().for_each(|ports| ports.block_quarantined(now));
    }

    /// Returns the lease of an owner that has not ended.
    pub(crate) fn live(&self, owner: Id) -> Option<&PortLease> {
        self.live.get(&owner)
    }

    /// Returns the LSN of the last change of the owner's leases that are over, or None if there are none.
    pub(crate) fn over_since(&self, owner: Id) -> Option<Lsn> {
        self.over.get(&owner)?.iter().map(|lease| lease.changed).max()
    }

    pub(crate) fn is_over_at(&self, owner: Id, node: &str) -> bool {
        self.over_at(owner, node).is_some()
    }

    fn over_at(&self, owner: Id, node: &str) -> Option<&PortLease> {
        self.over.get(&owner)?.iter().find(|lease| lease.is_at(node))
    }

    /// Returns the owners with a lease that is over at a node.
    pub(crate) fn owners_over_at(&self, node: &str) -> impl Iterator<Item = Id> {
        let owners = self.nodes.get(node).into_iter().flat_map(|ports| ports.changes.keys());
        owners.filter(move |owner| self.is_over_at(*owner, node))
    }

    pub(crate) fn live_servers(&self) -> impl Iterator<Item = Id> {
        self.live.iter().filter(|(_, lease)| lease.definition.is_server).map(|(owner, _)| *owner)
    }

    pub(crate) fn has_leases_at(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(|ports| !ports.changes.is_empty())
    }

    /// Returns the names of the nodes with leases, or with numbers in quarantine.
    pub(crate) fn used_nodes(&self, now: Ms) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(move |(_, ports)| ports.is_used_at(now)).map(|(name, _)| &**name)
    }

    pub(crate) fn counts(&self, node: &str, now: Ms) -> [[usize; 3]; 2] {
        let all_free = [[self.range.len(), 0, 0]; 2];
        self.nodes.get(node).map_or(all_free, |ports| ports.counts(now))
    }

    pub(crate) fn release_quarantined(&mut self, node: &str, now: Ms) {
        if let Some(ports) = self.nodes.get_mut(node) {
            ports.release_quarantined(now);
        }
    }

    /// Chooses numbers of a node for a lease by `random`, but does not take them. Returns None if too few are free for
    /// the namespace.
    pub(crate) fn draw(&self, node: &str, lease: &LeaseDefinition, random: u64) -> Option<Vec<u16>> {
        match self.nodes.get(node) {
            Some(ports) => ports.draw(lease, random),
            None => NodePorts::live(self.range).draw(lease, random),
        }
    }

    /// Chooses the numbers with which a live lease is bound to a node. Returns None if too few are free.
    pub(crate) fn draw_for_binding(&self, owner: Id, node: &str, random: u64) -> Option<Vec<u16>> {
        match self.over_at(owner, node) {
            Some(earlier) => Some(earlier.definition.numbers().map(|(_, number)| number).collect()),
            None => self.draw(node, &self.live(owner)?.definition, random),
        }
    }

    pub(crate) fn draw_one(&self, node: &str, protocol: Protocol, random: u64) -> Option<u16> {
        self.nodes.get(node)?.draw_one(protocol, random)
    }

    /// Adds a lease. `node` is None for a lease that is bound later.
    pub(crate) fn add(
        &mut self,
        lsn: Lsn,
        owner: Id,
        definition: LeaseDefinition,
        node: Option<LeaseNode>,
    ) -> Result<(), ApplyError> {
        if self.live.contains_key(&owner) || self.over.contains_key(&owner) {
            return Err(BAD_LEASE);
        }
        self.insert(owner, PortLease { definition, node, changed: lsn });
        Ok(())
    }

    /// Inserts a live lease, and takes its numbers.
    fn insert(&mut self, owner: Id, lease: PortLease) {
        if let Some(node) = &lease.node {
            let ports = self.node_mut(&node.name);
            lease.definition.numbers().for_each(|(protocol, number)| ports.take(protocol, number));
            self.record(&node.name, lease.changed, owner);
        }
        self.live.insert(owner, lease);
    }

    /// Binds a lease to a node with numbers of this node. A lease of another node moves.
    ///
    /// The node forgets the quarantines that ended up to `at`, and so does each node without leases.
    pub(crate) fn bind(
        &mut self,
        lsn: Lsn,
        owner: Id,
        node: LeaseNode,
        numbers: &[u16],
        at: Ms,
    ) -> Result<(), ApplyError> {
        let before = self.live.remove(&owner).ok_or(BAD_LEASE)?;
        if *node.name == *LOCAL_NODE || before.is_at(&node.name) {
            return Err(BAD_LEASE);
        }
        let mut definition = before.definition.clone();
        definition.set_numbers(numbers)?;
        if before.node.is_some() {
            definition.ports.iter_mut().for_each(|port| port.backend = None);
        }
        if let Some(earlier) = self.take_over(owner, &node.name)
            && !earlier.definition.numbers().eq(definition.numbers())
        {
            return Err(BAD_LEASE);
        }
        self.close(lsn, owner, before);
        let name = node.name.clone();
        self.insert(owner, PortLease { definition, node: Some(node), changed: lsn });
        self.forget_quarantines(&name, at);
        Ok(())
    }

    pub(crate) fn replace(
        &mut self,
        lsn: Lsn,
        owner: Id,
        name: &str,
        number: u16,
        until: Ms,
    ) -> Result<(), ApplyError> {
        let lease = self.live.get_mut(&owner).ok_or(BAD_LEASE)?;
        let port = lease.definition.ports.iter_mut().find(|port| &*port.name == name).ok_or(BAD_LEASE)?;
        let PortExposure::Number(old) = port.exposure else { return Err(BAD_LEASE) };
        port.exposure = PortExposure::Number(number);
        let protocol = port.protocol;
        lease.changed = lsn;
        let node = lease.node.clone().ok_or(BAD_LEASE)?.name;
        let ports = self.node_mut(&node);
        ports.quarantine(protocol, old, until, None);
        ports.take(protocol, number);
        self.record(&node, lsn, owner);
        Ok(())
    }

    pub(crate) fn set_backends(
        &mut self,
        lsn: Lsn,
        owner: Id,
        backends: &[(&str, &str, u16)],
    ) -> Result<(), ApplyError> {
        let lease = self.live.get_mut(&owner).ok_or(BAD_LEASE)?;
        set_backends(lease, backends);
        lease.changed = lsn;
        if let Some(node) = lease.node.clone() {
            self.record(&node.name, lsn, owner);
        }
        Ok(())
    }

    pub(crate) fn end(&mut self, lsn: Lsn, owner: Id) {
        if let Some(lease) = self.live.remove(&owner) {
            self.close(lsn, owner, lease);
        }
    }

    /// Makes a lease over. A lease without ports at a node is removed at once.
    fn close(&mut self, lsn: Lsn, owner: Id, mut lease: PortLease) {
        let Some(LeaseNode { name, .. }) = lease.node.clone() else { return };
        self.record(&name, lsn, owner);
        if lease.definition.ports.is_empty() {
            self.node_mut(&name).changes.remove(owner);
            self.drop_if_unused(&name);
            return;
        }
        lease.changed = lsn;
        self.over.entry(owner).or_default().push(lease);
    }

    /// Returns the numbers of a lease that is over: they are in quarantine until a time.
    pub(crate) fn give_back(&mut self, owner: Id, node: &str, until: Ms) -> Result<(), ApplyError> {
        let lease = self.take_over(owner, node).ok_or(BAD_LEASE)?;
        let ports = self.node_mut(node);
        for (protocol, number) in lease.definition.numbers() {
            ports.quarantine(protocol, number, until, Some(lease.definition.namespace));
        }
        // The edge-guard of a node that is gone may not have read this change.
        if node == LOCAL_NODE {
            ports.changes.remove(owner)
        } else {
            ports.changes.forget(owner)
        }
        self.drop_if_unused(node);
        Ok(())
    }

    fn take_over(&mut self, owner: Id, node: &str) -> Option<PortLease> {
        let leases = self.over.get_mut(&owner)?;
        let lease = leases.swap_remove(leases.iter().position(|lease| lease.is_at(node))?);
        if leases.is_empty() {
            self.over.remove(&owner);
        }
        Some(lease)
    }

    fn node_mut(&mut self, name: &str) -> &mut NodePorts {
        if !self.nodes.contains_key(name) {
            let mut ports = if self.is_live { NodePorts::live(self.range) } else { NodePorts::new(self.range) };
            ports.changes = ChangeFeed::forgetting(self.dropped_changes);
            self.nodes.insert(name.into(), ports);
        }
        self.nodes.get_mut(name).expect("it was inserted")
    }

    fn record(&mut self, node: &str, lsn: Lsn, owner: Id) {
        self.node_mut(node).changes.record_at(lsn, owner);
        self.newest_change = self.newest_change.max(lsn);
    }

    /// Forgets ended quarantines of a node, and of the nodes without leases. Only events do so, because replay has no
    /// clock. The local node keeps all, so that its images are those of earlier builds.
    fn forget_quarantines(&mut self, node: &str, up_to: Ms) {
        let newest_change = self.newest_change;
        self.nodes.retain(|name, ports| {
            let is_local = **name == *LOCAL_NODE;
            if !is_local && (**name == *node || ports.changes.is_empty()) {
                ports.forget_quarantines(up_to);
            }
            let is_kept = is_local || !ports.is_unused();
            if !is_kept {
                self.dropped_changes = newest_change;
            }
            is_kept
        });
    }

    fn drop_if_unused(&mut self, node: &str) {
        if node != LOCAL_NODE && self.nodes.get(node).is_some_and(NodePorts::is_unused) {
            self.nodes.remove(node);
            self.dropped_changes = self.newest_change;
        }
    }

    pub(crate) fn newest_change(&self) -> Lsn {
        self.newest_change
    }

    pub(crate) fn routes_since(&self, node: &str, after: Lsn, durable: Lsn) -> RouteChanges {
        let no_changes = ChangeFeed::starting_at(0);
        let changes = self.nodes.get(node).map_or(&no_changes, |ports| &ports.changes);
        // The feed has only the last change of an owner. Up to `durable`, it would leave out an owner with a durable
        // lease and a change in flight, and edge-guard would close its ports. So a complete set is not cut.
        let (is_complete, _) = changes.since(after, durable);
        let until = if is_complete { changes.sequence() } else { durable };
        let (_, owners) = changes.since(after, until);
        let lsn = if is_complete { until } else { changes.sequence().min(durable).max(after) };
        let mut routes = RouteChanges { lsn, is_complete, changed: vec![], removed: vec![] };
        for owner in owners {
            match self.live(owner).filter(|lease| lease.is_at(node)) {
                Some(lease) => routes.changed.extend(routes_of(owner, lease)),
                None => routes.removed.push(owner),
            }
        }
        routes
    }

    /// Returns the nodes with a route change after LSN `after`, up to LSN `durable`.
    pub(crate) fn nodes_changed_since(&self, after: Lsn, durable: Lsn) -> impl Iterator<Item = &str> {
        let changed = self.nodes.iter().filter(move |(_, ports)| ports.changes.has_changes(after, durable));
        changed.map(|(name, _)| &**name)
    }

    /// Returns true if only an image with nodes can hold the state.
    pub(crate) fn has_nodes(&self) -> bool {
        self.nodes.len() > 1 || self.live.values().any(|lease| lease.node.is_none())
    }

    pub(crate) fn write(&self, with_nodes: bool, bytes: &mut Vec<u8>, flush: &mut dyn FnMut(&mut Vec<u8>)) {
        self.write_node(LOCAL_NODE, bytes, flush);
        if !with_nodes {
            return;
        }
        Writer { bytes }.u32(self.nodes.len() as u32 - 1);
        for name in self.nodes.keys().filter(|name| ***name != *LOCAL_NODE) {
            Writer { bytes }.short_bytes(name.as_bytes());
            self.write_node(name, bytes, flush);
        }
        let requested = || self.live.iter().filter(|(_, lease)| lease.node.is_none());
        Writer { bytes }.u32(requested().count() as u32);
        for (owner, lease) in requested() {
            let mut w = Writer { bytes };
            w.id(*owner);
            w.u64(lease.changed);
            write_content(lease, &mut w);
            flush(bytes);
        }
    }

    fn write_node(&self, name: &str, bytes: &mut Vec<u8>, flush: &mut dyn FnMut(&mut Vec<u8>)) {
        let Some(ports) = self.nodes.get(name) else { return };
        ports.write_quarantine(&mut Writer { bytes });
        Writer { bytes }.u64(ports.changes.sequence());
        Writer { bytes }.u32(ports.changes.keys().len() as u32);
        for owner in ports.changes.keys() {
            let live = self.live(owner).filter(|lease| lease.is_at(name));
            let Some(lease) = live.or_else(|| self.over_at(owner, name)) else { continue };
            let mut w = Writer { bytes };
            w.id(owner);
            w.u64(lease.changed);
            w.flag(live.is_none());
            if let Some(node) = lease.node.as_ref().filter(|node| *node.name != *LOCAL_NODE) {
                w.short_bytes(node.host.as_bytes());
            }
            write_content(lease, &mut w);
            flush(bytes);
        }
    }

    pub(crate) fn load(&mut self, with_nodes: bool, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        self.load_node(LOCAL_NODE, r)?;
        if !with_nodes {
            return Ok(());
        }
        for _ in 0..r.u32()? {
            let name = r.text()?;
            if self.nodes.contains_key(name) {
                return Err(BAD_LEASE);
            }
            self.load_node(name, r)?;
        }
        for _ in 0..r.u32()? {
            let (owner, changed) = (r.id()?, r.u64()?);
            let lease = read_content(r, changed, None)?;
            self.load_lease(owner, false, lease)?;
        }
        Ok(())
    }

    fn load_node(&mut self, name: &str, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        let ports = self.node_mut(name);
        ports.load_quarantine(r)?;
        let newest_change = r.u64()?;
        ports.changes = ChangeFeed::starting_at(newest_change);
        self.newest_change = self.newest_change.max(newest_change);
        for _ in 0..r.u32()? {
            let (owner, changed, is_over) = (r.id()?, r.u64()?, r.flag()?);
            let host = if name == LOCAL_NODE { "" } else { r.text()? };
            let node = LeaseNode { name: name.into(), host: host.into() };
            let lease = read_content(r, changed, Some(node))?;
            self.load_lease(owner, is_over, lease)?;
        }
        Ok(())
    }

    fn load_lease(&mut self, owner: Id, is_over: bool, lease: PortLease) -> Result<(), ApplyError> {
        if let Some(node) = &lease.node {
            self.record(&node.name, lease.changed, owner);
        }
        if is_over {
            self.over.entry(owner).or_default().push(lease);
        } else if self.live.insert(owner, lease).is_some() {
            return Err(BAD_LEASE);
        }
        Ok(())
    }
}

fn set_backends(lease: &mut PortLease, backends: &[(&str, &str, u16)]) {
    for port in &mut lease.definition.ports {
        let of_port = backends.iter().find(|(name, ..)| *name == &*port.name);
        port.backend = of_port.map(|(_, address, port)| Backend { address: (*address).into(), port: *port });
    }
}

fn routes_of(owner: Id, lease: &PortLease) -> impl Iterator<Item = Route> {
    let LeaseDefinition { region, is_server, ports, .. } = &lease.definition;
    let served = ports.iter().filter(|port| !matches!(port.exposure, PortExposure::Range(..)));
    served.map(move |port| Route {
        owner,
        is_server: *is_server,
        region: region.clone(),
        port: port.clone(),
        node: lease.node.clone().unwrap_or_default(),
    })
}

fn write_content(lease: &PortLease, w: &mut Writer<'_>) {
    encode_lease(w, &lease.definition);
    let backends = lease.definition.ports.iter().filter_map(|port| {
        let backend = port.backend.as_ref()?;
        Some((&*port.name, &*backend.address, backend.port))
    });
    encode_backends(w, backends.collect::<Vec<_>>().into_iter());
}

fn read_content(r: &mut Reader<'_>, changed: Lsn, node: Option<LeaseNode>) -> Result<PortLease, ApplyError> {
    let mut lease = PortLease { definition: decode_lease(r)?, node, changed };
    set_backends(&mut lease, &decode_backends(r)?);
    Ok(lease)
}
