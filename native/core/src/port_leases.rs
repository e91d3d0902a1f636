//! Port leases of lobbies and dynamic servers, with a change feed of routes for edge-guard.
//!
//! `leased → over → returned`: the owner of an `over` lease has ended, but edge-guard may still have its sockets open.
//! Its port numbers stay blocked until edge-guard confirms that it closed them.

use std::collections::BTreeMap;

use crate::change_feed::ChangeFeed;
use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{
    Backend, Id, LeasedPort, Lsn, Ms, PortExposure, PortRange, PortRequest, Protocol, Route, RouteChanges,
    SessionCounting,
};
use crate::port_pool::PortPool;

/// Bit of a port's protocol byte: edge-guard sends a PROXY header to the process.
const PROXY_HEADER: u8 = 0x80;

/// Bits of a port's protocol byte: edge-guard counts sessions, and refuses those of an address without a slot.
const COUNTED: u8 = 0x40;
const REQUIRED: u8 = 0x20;

const BAD_LEASE: ApplyError = ApplyError::Malformed("a lease that does not fit the state");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortLease {
    pub(crate) namespace: Id,
    pub(crate) region: Box<str>,
    /// True for a dynamic server, false for a lobby.
    pub(crate) is_server: bool,
    pub(crate) ports: Vec<LeasedPort>,
    pub(crate) is_over: bool,
}

#[derive(Debug)]
pub(crate) struct PortLeaseTable {
    by_owner: BTreeMap<Id, PortLease>,
    changes: ChangeFeed<Id>,
    /// Numbers of TCP, and numbers of UDP.
    pools: [PortPool; 2],
}

impl PortLeaseTable {
    pub(crate) fn new(range: PortRange) -> PortLeaseTable {
        PortLeaseTable {
            by_owner: BTreeMap::new(),
            changes: ChangeFeed::starting_at(0),
            pools: [PortPool::new(range), PortPool::new(range)],
        }
    }

    pub(crate) fn get(&self, owner: Id) -> Option<&PortLease> {
        self.by_owner.get(&owner)
    }

    /// Returns the LSN of the last event that changed the lease, or 0 if there is none.
    pub(crate) fn changed_at(&self, owner: Id) -> Lsn {
        self.changes.changed_at(owner)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Id, &PortLease)> {
        self.by_owner.iter()
    }

    pub(crate) fn counts(&self, now: Ms) -> [[usize; 3]; 2] {
        self.pools.each_ref().map(|pool| pool.counts(now))
    }

    pub(crate) fn release_quarantined(&mut self, now: Ms) {
        self.pools.iter_mut().for_each(|pool| pool.release_quarantined(now));
    }

    /// Chooses free ports by `random`, but does not take them. Returns None if too few are free for the namespace.
    pub(crate) fn draw(&self, namespace: Id, requests: &[PortRequest<'_>], random: u64) -> Option<Vec<LeasedPort>> {
        if (self.pools.iter().zip(counted(requests)))
            .any(|(pool, more)| more > 0 && pool.exceeds_fair_share(namespace, more))
        {
            return None;
        }
        let mut ports: Vec<LeasedPort> = requests
            .iter()
            .map(|port| LeasedPort {
                name: port.name.into(),
                protocol: port.protocol,
                exposure: port.exposure,
                sends_proxy_header: port.sends_proxy_header,
                counting: port.counting,
                backend: None,
            })
            .collect();
        let mut drawn: [Vec<u16>; 2] = [Vec::new(), Vec::new()];
        let mut random = random;
        // A port of TCP and UDP needs a number that is free for both. Other ports of the request could take the last one.
        for is_both in [true, false] {
            for port in ports.iter_mut().filter(|port| (port.protocol == Protocol::TcpUdp) == is_both) {
                if !matches!(port.exposure, PortExposure::Number(_)) {
                    continue;
                }
                random = spread(random);
                let number = self.draw_number(port.protocol, random, &drawn)?;
                for family in families(port.protocol) {
                    drawn[family].push(number);
                }
                port.exposure = PortExposure::Number(number);
            }
        }
        Some(ports)
    }

    pub(crate) fn draw_one(&self, protocol: Protocol, random: u64) -> Option<u16> {
        self.draw_number(protocol, spread(random), &[Vec::new(), Vec::new()])
    }

    fn draw_number(&self, protocol: Protocol, random: u64, drawn: &[Vec<u16>; 2]) -> Option<u16> {
        let [streams, datagrams] = &self.pools;
        match protocol.families() {
            [true, true] => streams.draw_where(random, |number| {
                datagrams.is_free(number) && drawn.iter().all(|drawn| !drawn.contains(&number))
            }),
            [false, true] => datagrams.draw(random, &drawn[1]),
            _ => streams.draw(random, &drawn[0]),
        }
    }

    pub(crate) fn add(&mut self, lsn: Lsn, owner: Id, lease: PortLease) -> Result<(), ApplyError> {
        if self.by_owner.contains_key(&owner) {
            return Err(BAD_LEASE);
        }
        for port in &lease.ports {
            if let PortExposure::Number(number) = port.exposure {
                families(port.protocol).for_each(|family| self.pools[family].take(number));
            }
        }
        self.changes.record_at(lsn, owner);
        self.by_owner.insert(owner, lease);
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
        let lease = self.by_owner.get_mut(&owner).ok_or(BAD_LEASE)?;
        let port = lease.ports.iter_mut().find(|port| &*port.name == name).ok_or(BAD_LEASE)?;
        let PortExposure::Number(old) = port.exposure else { return Err(BAD_LEASE) };
        port.exposure = PortExposure::Number(number);
        let protocol = port.protocol;
        for family in families(protocol) {
            self.pools[family].quarantine(old, until, None);
            self.pools[family].take(number);
        }
        self.changes.record_at(lsn, owner);
        Ok(())
    }

    pub(crate) fn set_backends(
        &mut self,
        lsn: Lsn,
        owner: Id,
        backends: &[(&str, &str, u16)],
    ) -> Result<(), ApplyError> {
        let lease = self.by_owner.get_mut(&owner).ok_or(BAD_LEASE)?;
        for port in &mut lease.ports {
            let of_port = backends.iter().find(|(name, ..)| *name == &*port.name);
            port.backend = of_port.map(|(_, address, port)| Backend { address: (*address).into(), port: *port });
        }
        self.changes.record_at(lsn, owner);
        Ok(())
    }

    pub(crate) fn end(&mut self, lsn: Lsn, owner: Id) -> Result<(), ApplyError> {
        let Some(lease) = self.by_owner.get_mut(&owner) else { return Ok(()) };
        lease.is_over = true;
        let has_ports = !lease.ports.is_empty();
        self.changes.record_at(lsn, owner);
        if !has_ports {
            self.remove(owner);
        }
        Ok(())
    }

    pub(crate) fn give_back(&mut self, owner: Id, until: Ms) -> Result<(), ApplyError> {
        let lease = self.remove(owner).filter(|lease| lease.is_over).ok_or(BAD_LEASE)?;
        for port in &lease.ports {
            if let PortExposure::Number(number) = port.exposure {
                for family in families(port.protocol) {
                    self.pools[family].quarantine(number, until, Some(lease.namespace));
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, owner: Id) -> Option<PortLease> {
        self.changes.remove(owner);
        self.by_owner.remove(&owner)
    }

    pub(crate) fn newest_change(&self) -> Lsn {
        self.changes.sequence()
    }

    pub(crate) fn routes_since(&self, after: Lsn, durable: Lsn) -> RouteChanges {
        // The feed has only the last change of an owner. Up to `durable`, it would leave out an owner with a durable
        // lease and a change in flight, and edge-guard would close its ports. So a complete set is not cut.
        let (is_complete, _) = self.changes.since(after, durable);
        let until = if is_complete { self.changes.sequence() } else { durable };
        let (_, owners) = self.changes.since(after, until);
        let lsn = if is_complete { until } else { self.changes.sequence().min(durable).max(after) };
        let mut routes = RouteChanges { lsn, is_complete, changed: vec![], removed: vec![] };
        for owner in owners {
            let Some(lease) = self.by_owner.get(&owner) else { continue };
            if lease.is_over {
                routes.removed.push(owner);
                continue;
            }
            routes.changed.extend(lease.ports.iter().filter_map(|port| {
                if let PortExposure::Range(..) = port.exposure {
                    return None;
                }
                Some(Route { owner, is_server: lease.is_server, region: lease.region.clone(), port: port.clone() })
            }));
        }
        routes
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>, flush: &mut dyn FnMut(&mut Vec<u8>)) {
        self.pools.iter().for_each(|pool| pool.write(&mut Writer { bytes }));
        Writer { bytes }.u64(self.changes.sequence());
        Writer { bytes }.u32(self.by_owner.len() as u32);
        for (owner, lease) in &self.by_owner {
            let mut w = Writer { bytes };
            w.id(*owner);
            w.u64(self.changed_at(*owner));
            w.flag(lease.is_over);
            encode_lease(&mut w, lease);
            let backends = lease.ports.iter().filter_map(|port| {
                let backend = port.backend.as_ref()?;
                Some((&*port.name, &*backend.address, backend.port))
            });
            encode_backends(&mut w, backends.collect::<Vec<_>>().into_iter());
            flush(bytes);
        }
    }

    pub(crate) fn load(&mut self, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        self.pools.iter_mut().try_for_each(|pool| pool.load(r))?;
        self.changes = ChangeFeed::starting_at(r.u64()?);
        for _ in 0..r.u32()? {
            let (owner, changed, is_over) = (r.id()?, r.u64()?, r.flag()?);
            let mut lease = decode_lease(r)?;
            lease.is_over = is_over;
            self.add(changed, owner, lease)?;
            let backends = decode_backends(r)?;
            if !backends.is_empty() {
                self.set_backends(changed, owner, &backends)?;
            }
        }
        Ok(())
    }
}

/// Returns the indices of the pools that the protocol takes a number of.
fn families(protocol: Protocol) -> impl Iterator<Item = usize> {
    (0..2).filter(move |family| protocol.families()[*family])
}

fn counted(requests: &[PortRequest<'_>]) -> [usize; 2] {
    let mut counts = [0; 2];
    for request in requests.iter().filter(|request| matches!(request.exposure, PortExposure::Number(_))) {
        families(request.protocol).for_each(|family| counts[family] += 1);
    }
    counts
}

fn spread(random: u64) -> u64 {
    let mut mixed = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

pub(crate) fn encode_lease(w: &mut Writer<'_>, lease: &PortLease) {
    w.id(lease.namespace);
    w.short_bytes(lease.region.as_bytes());
    w.flag(lease.is_server);
    w.u16(lease.ports.len() as u16);
    for port in &lease.ports {
        w.short_bytes(port.name.as_bytes());
        let counting = match port.counting {
            SessionCounting::Uncounted => 0,
            SessionCounting::Compared => REQUIRED,
            SessionCounting::Counted => COUNTED,
            SessionCounting::Required => COUNTED | REQUIRED,
        };
        w.u8(port.protocol as u8 | counting | if port.sends_proxy_header { PROXY_HEADER } else { 0 });
        let (kind, first, last) = match port.exposure {
            PortExposure::Number(number) => (0, number, number),
            PortExposure::Host => (1, 0, 0),
            PortExposure::Range(first, last) => (2, first, last),
        };
        w.u8(kind);
        w.u16(first);
        w.u16(last);
    }
}

pub(crate) fn decode_lease(r: &mut Reader<'_>) -> Result<PortLease, ApplyError> {
    let (namespace, region, is_server) = (r.id()?, r.text()?.into(), r.flag()?);
    let mut ports = Vec::new();
    for _ in 0..r.u16()? {
        let name = r.text()?.into();
        let byte = r.u8()?;
        let sends_proxy_header = byte & PROXY_HEADER != 0;
        let counting = match (byte & COUNTED != 0, byte & REQUIRED != 0) {
            (false, false) => SessionCounting::Uncounted,
            (true, false) => SessionCounting::Counted,
            (true, true) => SessionCounting::Required,
            (false, true) => SessionCounting::Compared,
        };
        let protocol = Protocol::from_byte(byte & !(PROXY_HEADER | COUNTED | REQUIRED)).ok_or(BAD_LEASE)?;
        let (kind, first, last) = (r.u8()?, r.u16()?, r.u16()?);
        let exposure = match kind {
            0 => PortExposure::Number(first),
            1 => PortExposure::Host,
            2 => PortExposure::Range(first, last),
            _ => return Err(BAD_LEASE),
        };
        ports.push(LeasedPort { name, protocol, exposure, sends_proxy_header, counting, backend: None });
    }
    Ok(PortLease { namespace, region, is_server, ports, is_over: false })
}

pub(crate) fn encode_backends<'a>(
    w: &mut Writer<'_>,
    backends: impl ExactSizeIterator<Item = (&'a str, &'a str, u16)>,
) {
    w.u16(backends.len() as u16);
    for (name, address, port) in backends {
        w.short_bytes(name.as_bytes());
        w.short_bytes(address.as_bytes());
        w.u16(port);
    }
}

pub(crate) fn decode_backends<'a>(r: &mut Reader<'a>) -> Result<Vec<(&'a str, &'a str, u16)>, ApplyError> {
    (0..r.u16()?).map(|_| Ok((r.text()?, r.text()?, r.u16()?))).collect()
}
