//! Port commands: leases of dynamic servers, nodes, backends, and confirmations of edge-guard.

use super::{CreditClass, Engine, accept, has_credit, refuse};
use crate::command::{
    BindPorts, CommandOutcome, Context, Id, LeaseRequest, LeasedPorts, Lsn, Ms, PortExposure, RouteChanges,
};
use crate::journal_event::Event;
use crate::lease_definition::LeaseDefinition;
use crate::lobby::Lobby;
use crate::port_leases::{LOCAL_NODE, PortLease};
use crate::refusal::Refusal;

/// Maximum number of leases of gone nodes that one command returns.
const RETURNED_AT_ONCE_MAX: usize = 1_024;

impl Engine {
    /// Leases ports for a dynamic server until [`Engine::end_lease`]. A repeated request returns the same ports.
    ///
    /// Refusals: `PortsExhausted`, `StorageFull`; `LeaseNotFound` after the end of the lease.
    pub fn lease_ports(&mut self, cx: &mut Context<'_>, c: &LeaseRequest<'_>) -> CommandOutcome<LeasedPorts> {
        self.begin_command(cx);
        if let Some(lease) = self.leases.live(c.owner) {
            return accept(lease.leased_ports(), lease.changed);
        }
        if let Some(ended) = self.leases.over_since(c.owner) {
            return refuse(Refusal::LeaseNotFound, ended);
        }
        let lease = LeaseDefinition::new(c.namespace, c.region, true, c.ports);
        let Some(event) = self.lease_event(c.owner, lease, c.random) else {
            return refuse(Refusal::PortsExhausted, self.last_lsn);
        };
        self.emit_new_ports(cx, c.owner, &event)
    }

    /// Returns the event that leases ports of the local node, or requests ports of a later one. Returns None if too few
    /// ports are free for the namespace.
    pub(super) fn lease_event(&mut self, owner: Id, mut lease: LeaseDefinition, random: u64) -> Option<Event<'static>> {
        if self.config.binds_ports_later {
            return Some(Event::PortsRequested { owner, lease: Box::new(lease) });
        }
        self.leases.release_quarantined(LOCAL_NODE, self.time.now());
        let numbers = self.leases.draw(LOCAL_NODE, &lease, random)?;
        lease.set_numbers(&numbers).expect("a number for each port that needs one");
        Some(Event::PortsLeased { owner, lease: Box::new(lease) })
    }

    fn emit_new_ports(&mut self, cx: &mut Context<'_>, owner: Id, event: &Event<'_>) -> CommandOutcome<LeasedPorts> {
        if !self.has_credit_for(cx, CreditClass::NewSlot, event) {
            return refuse(Refusal::StorageFull, 0);
        }
        self.emit(cx, event);
        let leased = self.leases.live(owner).map(PortLease::leased_ports).unwrap_or_default();
        accept(leased, self.last_lsn)
    }

    /// Binds the ports of a lobby or dynamic server to the node that runs it. A repeated request returns the same ports.
    ///
    /// Another node gets the lease as long as no player can know its ports. The earlier node keeps its numbers blocked
    /// until its edge-guard has closed them.
    ///
    /// Refusals: `PortsExhausted`, `StorageFull`; `LeaseInUse` at another node; `LobbyStopped` or `LeaseNotFound` after
    /// the end of the owner.
    ///
    /// # Panics
    /// If the name of the node is empty.
    pub fn bind_ports(&mut self, cx: &mut Context<'_>, c: &BindPorts<'_>) -> CommandOutcome<LeasedPorts> {
        assert!(c.node != LOCAL_NODE, "a node of a cluster has a name");
        self.begin_command(cx);
        let Some(lease) = self.leases.live(c.owner) else {
            let number = self.lobbies.number_of(&self.seed, c.owner);
            let is_ended_lobby = number.is_some_and(|number| self.lobbies.live(number).is_none());
            let refusal = if is_ended_lobby { Refusal::LobbyStopped } else { Refusal::LeaseNotFound };
            return refuse(refusal, self.last_lsn);
        };
        if lease.is_at(c.node) {
            return accept(lease.leased_ports(), lease.changed);
        }
        if lease.node.is_some() && self.may_be_published(c.owner, lease) {
            return refuse(Refusal::LeaseInUse, lease.changed);
        }
        let at = self.time.now();
        self.leases.release_quarantined(c.node, at);
        let Some(numbers) = self.leases.draw_for_binding(c.owner, c.node, c.random) else {
            return refuse(Refusal::PortsExhausted, self.last_lsn);
        };
        let event = Event::PortsBound { owner: c.owner, node: c.node, host: c.host, numbers, at };
        let outcome = self.emit_new_ports(cx, c.owner, &event);
        if outcome.result.is_ok() {
            // A new machine with the name of an earlier one.
            self.gone_nodes.remove(c.node);
        }
        outcome
    }

    /// Sets the addresses where the process of a lobby or server listens, by port name.
    ///
    /// Refusals: `StorageFull`, `LeaseNotFound`.
    pub fn set_backends(
        &mut self,
        cx: &mut Context<'_>,
        owner: Id,
        backends: &[(&str, &str, u16)],
    ) -> CommandOutcome<()> {
        self.begin_command(cx);
        let Some(lease) = self.leases.live(owner) else { return refuse(Refusal::LeaseNotFound, self.last_lsn) };
        let is_unchanged = lease.definition.ports.iter().all(|port| {
            let requested = backends.iter().find(|(name, ..)| *name == &*port.name);
            let has = port.backend.as_ref().map(|backend| (&*backend.address, backend.port));
            requested.map(|(_, address, port)| (*address, *port)) == has
        });
        if is_unchanged {
            return accept((), lease.changed);
        }
        let event = Event::BackendsSet { owner, backends: backends.to_vec() };
        if !self.has_credit_for(cx, CreditClass::ExistingSlot, &event) {
            return refuse(Refusal::StorageFull, 0);
        }
        self.emit(cx, &event);
        accept((), self.last_lsn)
    }

    /// Ends the lease of a dynamic server, so that edge-guard removes its routes. Returns false without a live lease.
    ///
    /// Refusals: `StorageFull`.
    pub fn end_lease(&mut self, cx: &mut Context<'_>, owner: Id) -> CommandOutcome<bool> {
        self.begin_command(cx);
        if !self.leases.live(owner).is_some_and(|lease| lease.definition.is_server) {
            return accept(false, self.leases.over_since(owner).unwrap_or(self.last_lsn));
        }
        if !has_credit(cx, CreditClass::ExistingSlot, Event::LEASE_ENDED_LEN) {
            return refuse(Refusal::StorageFull, 0);
        }
        self.emit(cx, &Event::LeaseEnded { owner });
        accept(true, self.last_lsn)
    }

    /// Replaces a port number that edge-guard could not bind, unless players may already know it.
    ///
    /// Players may know it once the lobby is ready or the server listens. Returns the number in use afterwards, or None
    /// if the named port has no number.
    ///
    /// Refusals: `PortsExhausted`, `StorageFull`, `LeaseNotFound`.
    pub fn replace_port(
        &mut self,
        cx: &mut Context<'_>,
        owner: Id,
        name: &str,
        refused: u16,
        random: u64,
    ) -> CommandOutcome<Option<u16>> {
        self.begin_command(cx);
        let Some(lease) = self.leases.live(owner) else { return refuse(Refusal::LeaseNotFound, self.last_lsn) };
        let wait = lease.changed;
        let port = lease.definition.ports.iter().find(|port| &*port.name == name);
        let port = port.map(|port| (port.exposure, port.protocol));
        let (Some((PortExposure::Number(now), protocol)), Some(node)) = (port, lease.node.clone()) else {
            return accept(None, wait);
        };
        if now != refused || self.may_be_published(owner, lease) {
            return accept(Some(now), wait);
        }
        self.leases.release_quarantined(&node.name, self.time.now());
        let Some(number) = self.leases.draw_one(&node.name, protocol, random) else {
            return refuse(Refusal::PortsExhausted, self.last_lsn);
        };
        let until = self.time.now().saturating_add(self.config.refused_port_quarantine_ms);
        let event = Event::PortReplaced { owner, name, number, until };
        if !self.has_credit_for(cx, CreditClass::NewSlot, &event) {
            return refuse(Refusal::StorageFull, 0);
        }
        self.emit(cx, &event);
        accept(Some(number), self.last_lsn)
    }

    fn may_be_published(&self, owner: Id, lease: &PortLease) -> bool {
        if lease.definition.is_server {
            return lease.definition.ports.iter().any(|port| port.backend.is_some());
        }
        let number = self.lobbies.number_of(&self.seed, owner);
        number.and_then(|number| self.lobbies.live(number)).is_some_and(|lobby: &Lobby| lobby.is_ready)
    }

    /// Starts the quarantine of the ports of a lease that is over at a node, after its edge-guard closed their sockets.
    /// Returns false if the owner has no such lease.
    ///
    /// Refusals: `StorageFull`.
    pub fn return_ports(&mut self, cx: &mut Context<'_>, owner: Id, node: &str) -> CommandOutcome<bool> {
        self.begin_command(cx);
        if !self.leases.is_over_at(owner, node) {
            return accept(false, 0);
        }
        if !self.return_over_lease(cx, owner, node) {
            return refuse(Refusal::StorageFull, 0);
        }
        accept(true, self.last_lsn)
    }

    /// Returns false if the journal is full.
    fn return_over_lease(&mut self, cx: &mut Context<'_>, owner: Id, node: &str) -> bool {
        let until = self.time.now().saturating_add(self.config.port_quarantine_ms);
        let event = match node {
            LOCAL_NODE => Event::PortsReturned { owner, until },
            _ => Event::NodePortsReturned { owner, node, until },
        };
        let has_credit = self.has_credit_for(cx, CreditClass::ExistingSlot, &event);
        if has_credit {
            self.emit(cx, &event);
        }
        has_credit
    }

    /// Starts the quarantine of a node's ports without its edge-guard, because the machine is gone for good.
    ///
    /// Ports of a lease that is over return at once. Ports of a live lease return after its end. The engine does not
    /// remember this over a restart.
    pub fn return_ports_of_node(&mut self, cx: &mut Context<'_>, node: &str) -> CommandOutcome<()> {
        self.begin_command(cx);
        if self.leases.has_leases_at(node) {
            self.gone_nodes.insert(node.into());
        }
        self.return_ports_of_gone_nodes(cx);
        accept((), self.last_lsn)
    }

    /// Returns how many leases were returned, as far as the journal has space.
    pub(super) fn return_ports_of_gone_nodes(&mut self, cx: &mut Context<'_>) -> u32 {
        let mut returned = 0;
        for (node, owner) in self.leases_to_return().take(RETURNED_AT_ONCE_MAX).collect::<Vec<_>>() {
            if !self.return_over_lease(cx, owner, &node) {
                break;
            }
            returned += 1;
        }
        let leases = &self.leases;
        self.gone_nodes.retain(|node| leases.has_leases_at(node));
        returned
    }

    fn leases_to_return(&self) -> impl Iterator<Item = (Box<str>, Id)> {
        self.gone_nodes.iter().flat_map(|node| self.leases.owners_over_at(node).map(|owner| (node.clone(), owner)))
    }

    /// Returns the time for the next return of ports of a gone node: now, if there are any.
    pub(super) fn next_return(&self) -> Option<Ms> {
        self.leases_to_return().next().map(|_| self.time.now())
    }

    /// Returns the route changes of a node after LSN `after`, up to LSN `durable`. For 0, returns all routes of now, with
    /// the LSN that must be durable before they are used.
    pub fn routes_since(&self, node: &str, after: Lsn, durable: Lsn) -> RouteChanges {
        self.leases.routes_since(node, after, durable)
    }

    /// Returns the nodes with a route change after LSN `after`, up to LSN `durable`, and the LSN to pass to the next call.
    ///
    /// A reader of many nodes need not ask each one.
    pub fn nodes_changed_since(&self, after: Lsn, durable: Lsn) -> (Lsn, Vec<&str>) {
        let lsn = self.leases.newest_change().min(durable).max(after);
        (lsn, self.leases.nodes_changed_since(after, durable).collect())
    }

    /// Returns the ports of a live lobby or server.
    pub fn leased_ports(&self, owner: Id) -> Option<LeasedPorts> {
        self.leases.live(owner).map(PortLease::leased_ports)
    }

    /// Returns the `lobby_` token of a live lobby.
    pub fn lobby_token(&self, lobby: Id) -> Option<String> {
        let lobby = self.lobbies.live(self.lobbies.number_of(&self.seed, lobby)?)?;
        self.config.keys.sign_lobby(lobby.key_id, lobby.id)
    }

    /// Returns the dynamic servers with a live lease.
    pub fn leased_servers(&self) -> Vec<Id> {
        self.leases.live_servers().collect()
    }

    /// Returns the names of the nodes with leases or quarantined ports, ascending. The name of a single machine is empty.
    pub fn port_nodes(&self) -> Vec<&str> {
        self.leases.used_nodes(self.time.now()).collect()
    }

    /// Returns the number of free, leased and quarantined ports of a node, for TCP and for UDP.
    pub fn port_counts(&self, node: &str) -> [[usize; 3]; 2] {
        self.leases.counts(node, self.time.now())
    }

    pub(super) fn has_credit_for(&self, cx: &Context<'_>, class: CreditClass, event: &Event<'_>) -> bool {
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        has_credit(cx, class, bytes.len() as u64)
    }
}
