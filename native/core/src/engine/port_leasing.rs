//! Port commands: leases of dynamic servers, backends, and confirmations of edge-guard.

use super::{CreditClass, Engine, accept, has_credit, refuse};
use crate::command::{CommandOutcome, Context, Id, LeaseRequest, LeasedPort, Lsn, PortExposure, RouteChanges};
use crate::journal_event::Event;
use crate::lobby::Lobby;
use crate::port_leases::PortLease;
use crate::refusal::Refusal;

impl Engine {
    /// Leases ports for a dynamic server until [`Engine::end_lease`]. A repeated request returns the same ports.
    ///
    /// Refusals: `PortsExhausted`, `StorageFull`; `LeaseNotFound` after the end of the lease.
    pub fn lease_ports(&mut self, cx: &mut Context<'_>, c: &LeaseRequest<'_>) -> CommandOutcome<Vec<LeasedPort>> {
        self.begin_command(cx);
        if let Some(lease) = self.leases.get(c.owner) {
            let wait = self.leases.changed_at(c.owner);
            return if lease.is_over {
                refuse(Refusal::LeaseNotFound, wait)
            } else {
                accept(lease.ports.clone(), wait)
            };
        }
        self.leases.release_quarantined(self.time.now());
        let Some(ports) = self.leases.draw(c.namespace, c.ports, c.random) else {
            return refuse(Refusal::PortsExhausted, self.last_lsn);
        };
        let lease = PortLease {
            namespace: c.namespace,
            region: c.region.into(),
            is_server: true,
            ports: ports.clone(),
            is_over: false,
        };
        let event = Event::PortsLeased { owner: c.owner, lease: Box::new(lease) };
        if !self.has_credit_for(cx, CreditClass::NewSlot, &event) {
            return refuse(Refusal::StorageFull, 0);
        }
        self.emit(cx, &event);
        accept(ports, self.last_lsn)
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
        let Some(lease) = self.leases.get(owner).filter(|lease| !lease.is_over) else {
            return refuse(Refusal::LeaseNotFound, self.last_lsn);
        };
        let is_unchanged = lease.ports.iter().all(|port| {
            let requested = backends.iter().find(|(name, ..)| *name == &*port.name);
            let has = port.backend.as_ref().map(|backend| (&*backend.address, backend.port));
            requested.map(|(_, address, port)| (*address, *port)) == has
        });
        if is_unchanged {
            return accept((), self.leases.changed_at(owner));
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
        let Some(lease) = self.leases.get(owner).filter(|lease| lease.is_server) else {
            return accept(false, self.last_lsn);
        };
        if lease.is_over {
            return accept(false, self.leases.changed_at(owner));
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
        let Some(lease) = self.leases.get(owner).filter(|lease| !lease.is_over) else {
            return refuse(Refusal::LeaseNotFound, self.last_lsn);
        };
        let wait = self.leases.changed_at(owner);
        let port = lease.ports.iter().find(|port| &*port.name == name);
        let Some((PortExposure::Number(now), protocol)) = port.map(|port| (port.exposure, port.protocol)) else {
            return accept(None, wait);
        };
        if now != refused || self.may_be_published(owner, lease) {
            return accept(Some(now), wait);
        }
        self.leases.release_quarantined(self.time.now());
        let Some(number) = self.leases.draw_one(protocol, random) else {
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
        if lease.is_server {
            return lease.ports.iter().any(|port| port.backend.is_some());
        }
        let number = self.lobbies.number_of(&self.seed, owner);
        number.and_then(|number| self.lobbies.live(number)).is_some_and(|lobby: &Lobby| lobby.is_ready)
    }

    /// Starts the quarantine of the ports of an ended lease, after edge-guard closed their sockets. Returns false if
    /// the owner has no ended lease.
    ///
    /// Refusals: `StorageFull`.
    pub fn return_ports(&mut self, cx: &mut Context<'_>, owner: Id) -> CommandOutcome<bool> {
        self.begin_command(cx);
        if !self.leases.get(owner).is_some_and(|lease| lease.is_over) {
            return accept(false, 0);
        }
        if !has_credit(cx, CreditClass::ExistingSlot, Event::PORTS_RETURNED_LEN) {
            return refuse(Refusal::StorageFull, 0);
        }
        let until = self.time.now().saturating_add(self.config.port_quarantine_ms);
        self.emit(cx, &Event::PortsReturned { owner, until });
        accept(true, self.last_lsn)
    }

    /// Returns the route changes after LSN `after`, up to LSN `durable`. For 0, returns all routes of now, with the LSN
    /// that must be durable before they are used.
    pub fn routes_since(&self, after: Lsn, durable: Lsn) -> RouteChanges {
        self.leases.routes_since(after, durable)
    }

    /// Returns the ports of a live lobby or server.
    pub fn leased_ports(&self, owner: Id) -> Option<&[LeasedPort]> {
        self.leases.get(owner).filter(|lease| !lease.is_over).map(|lease| &*lease.ports)
    }

    /// Returns the `lobby_` token of a live lobby.
    pub fn lobby_token(&self, lobby: Id) -> Option<String> {
        let lobby = self.lobbies.live(self.lobbies.number_of(&self.seed, lobby)?)?;
        self.config.keys.sign_lobby(lobby.key_id, lobby.id)
    }

    /// Returns the dynamic servers with a live lease.
    pub fn leased_servers(&self) -> Vec<Id> {
        let servers = self.leases.iter().filter(|(_, lease)| lease.is_server && !lease.is_over);
        servers.map(|(owner, _)| *owner).collect()
    }

    /// Returns the number of free, leased and quarantined ports, for TCP and for UDP.
    pub fn port_counts(&self) -> [[usize; 3]; 2] {
        self.leases.counts(self.time.now())
    }

    pub(super) fn has_credit_for(&self, cx: &Context<'_>, class: CreditClass, event: &Event<'_>) -> bool {
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        has_credit(cx, class, bytes.len() as u64)
    }
}
