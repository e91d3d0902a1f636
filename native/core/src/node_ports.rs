//! Ports of one node: the quarantine of its numbers, their states, and the changes of its leases.

use std::collections::BTreeMap;

use crate::change_feed::ChangeFeed;
use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{Id, Ms, PortRange, Protocol};
use crate::lease_definition::LeaseDefinition;
use crate::port_pool::PortPool;

const BAD_PORTS: ApplyError = ApplyError::Malformed("ports of the image do not add up");

#[derive(Debug)]
pub(crate) struct NodePorts {
    range: PortRange,
    /// End of the last quarantine of each number, for TCP and for UDP. Durable.
    quarantined_until: [BTreeMap<u16, Ms>; 2],
    /// Owners with a lease at this node, with the last change of each.
    pub(crate) changes: ChangeFeed<Id>,
    /// States of the numbers, for TCP and for UDP. None during recovery: leases and quarantine define the states.
    pools: Option<[PortPool; 2]>,
}

impl NodePorts {
    /// Returns the ports of a node without leases, as during recovery.
    pub(crate) fn new(range: PortRange) -> NodePorts {
        NodePorts {
            range,
            quarantined_until: [BTreeMap::new(), BTreeMap::new()],
            changes: ChangeFeed::starting_at(0),
            pools: None,
        }
    }

    /// Returns the ports of a node without leases, ready for commands.
    pub(crate) fn live(range: PortRange) -> NodePorts {
        let mut ports = NodePorts::new(range);
        ports.create_pools();
        ports
    }

    pub(crate) fn drop_pools(&mut self) {
        self.pools = None;
    }

    /// Creates the states of the numbers, all free. [`NodePorts::take`] and [`NodePorts::block_quarantined`] complete
    /// them.
    pub(crate) fn create_pools(&mut self) {
        self.pools = Some([PortPool::new(self.range), PortPool::new(self.range)]);
    }

    /// Blocks the numbers with a quarantine that has not ended.
    pub(crate) fn block_quarantined(&mut self, now: Ms) {
        let Some(pools) = &mut self.pools else { return };
        for (pool, quarantined_until) in pools.iter_mut().zip(&self.quarantined_until) {
            for (number, until) in quarantined_until {
                if *until > now && pool.is_free(*number) {
                    pool.quarantine(*number, *until, None);
                }
            }
        }
    }

    /// Returns true if the node has no lease and no number with a quarantine.
    pub(crate) fn is_unused(&self) -> bool {
        self.changes.is_empty() && self.quarantined_until.iter().all(BTreeMap::is_empty)
    }

    /// Returns true if the node has a lease, or a number in quarantine.
    pub(crate) fn is_used_at(&self, now: Ms) -> bool {
        !self.changes.is_empty() || self.quarantined_until.iter().flat_map(BTreeMap::values).any(|until| *until > now)
    }

    /// Returns the number of free, leased and quarantined numbers, for TCP and for UDP.
    pub(crate) fn counts(&self, now: Ms) -> [[usize; 3]; 2] {
        let all_free = [[self.range.len(), 0, 0]; 2];
        self.pools.as_ref().map_or(all_free, |pools| pools.each_ref().map(|pool| pool.counts(now)))
    }

    pub(crate) fn release_quarantined(&mut self, now: Ms) {
        self.pools.iter_mut().flatten().for_each(|pool| pool.release_quarantined(now));
    }

    /// Chooses free numbers for a lease by `random`, but does not take them. Returns None if too few are free for the
    /// namespace.
    pub(crate) fn draw(&self, lease: &LeaseDefinition, random: u64) -> Option<Vec<u16>> {
        let pools = self.pools.as_ref()?;
        let protocols: Vec<Protocol> = lease.numbers().map(|(protocol, _)| protocol).collect();
        let needed = [0, 1].map(|family| protocols.iter().filter(|protocol| protocol.families()[family]).count());
        if pools.iter().zip(needed).any(|(pool, more)| more > 0 && pool.exceeds_fair_share(lease.namespace, more)) {
            return None;
        }
        let mut numbers = vec![0; protocols.len()];
        let mut drawn: [Vec<u16>; 2] = [Vec::new(), Vec::new()];
        let mut random = random;
        // A port of TCP and UDP needs a number that is free for both. Other ports of the lease could take the last one.
        for is_both in [true, false] {
            let ports = numbers.iter_mut().zip(&protocols);
            for (number, protocol) in ports.filter(|(_, protocol)| (**protocol == Protocol::TcpUdp) == is_both) {
                random = spread(random);
                *number = draw_number(pools, *protocol, random, &drawn)?;
                families(*protocol).for_each(|family| drawn[family].push(*number));
            }
        }
        Some(numbers)
    }

    pub(crate) fn draw_one(&self, protocol: Protocol, random: u64) -> Option<u16> {
        draw_number(self.pools.as_ref()?, protocol, spread(random), &[Vec::new(), Vec::new()])
    }

    pub(crate) fn take(&mut self, protocol: Protocol, number: u16) {
        let Some(pools) = &mut self.pools else { return };
        families(protocol).for_each(|family| pools[family].take(number));
    }

    /// Quarantines a number until a time. If `was` is set, the number counts as quarantined for this namespace.
    pub(crate) fn quarantine(&mut self, protocol: Protocol, number: u16, until: Ms, was: Option<Id>) {
        // A journal may name numbers of an earlier range.
        if !self.range.contains(number) {
            return;
        }
        for family in families(protocol) {
            self.quarantined_until[family].insert(number, until);
            if let Some(pools) = &mut self.pools {
                pools[family].quarantine(number, until, was);
            }
        }
    }

    /// Forgets the quarantines that ended at or before a time.
    pub(crate) fn forget_quarantines(&mut self, up_to: Ms) {
        self.quarantined_until.iter_mut().for_each(|numbers| numbers.retain(|_, until| *until > up_to));
        self.release_quarantined(up_to);
    }

    pub(crate) fn write_quarantine(&self, w: &mut Writer<'_>) {
        for quarantined_until in &self.quarantined_until {
            w.u16(quarantined_until.len() as u16);
            for (number, until) in quarantined_until {
                w.u16(*number);
                w.u64(*until);
            }
        }
    }

    pub(crate) fn load_quarantine(&mut self, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        for quarantined_until in &mut self.quarantined_until {
            for _ in 0..r.u16()? {
                let (number, until) = (r.u16()?, r.u64()?);
                if until == 0 {
                    return Err(BAD_PORTS);
                }
                if self.range.contains(number) {
                    quarantined_until.insert(number, until);
                }
            }
        }
        Ok(())
    }
}

fn draw_number(pools: &[PortPool; 2], protocol: Protocol, random: u64, drawn: &[Vec<u16>; 2]) -> Option<u16> {
    let [streams, datagrams] = pools;
    match protocol.families() {
        [true, true] => streams.draw_where(random, |number| {
            datagrams.is_free(number) && drawn.iter().all(|drawn| !drawn.contains(&number))
        }),
        [false, true] => datagrams.draw(random, &drawn[1]),
        _ => streams.draw(random, &drawn[0]),
    }
}

/// Returns the indices of the pools that the protocol takes a number of.
fn families(protocol: Protocol) -> impl Iterator<Item = usize> {
    (0..2).filter(move |family| protocol.families()[*family])
}

fn spread(random: u64) -> u64 {
    let mut mixed = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: PortRange = PortRange { first: 30_000, last: 30_099 };

    fn bytes_of(ports: &NodePorts) -> Vec<u8> {
        let mut bytes = Vec::new();
        ports.write_quarantine(&mut Writer { bytes: &mut bytes });
        bytes
    }

    #[test]
    fn quarantine_survives_a_restart() {
        let mut ports = NodePorts::live(RANGE);
        ports.quarantine(Protocol::Udp, 30_003, 31_003, None);
        ports.quarantine(Protocol::TcpUdp, 30_050, 31_050, None);
        ports.release_quarantined(31_003);
        let mut restored = NodePorts::new(RANGE);
        restored.load_quarantine(&mut Reader::new(&bytes_of(&ports))).expect("ours");
        assert_eq!(bytes_of(&restored), bytes_of(&ports));
        restored.create_pools();
        restored.block_quarantined(31_003);
        assert_eq!(restored.counts(31_003), [[99, 0, 1], [99, 0, 1]]);
        assert_eq!(restored.counts(31_003), ports.counts(31_003));
    }

    #[test]
    fn lease_takes_its_number_before_an_earlier_quarantine_of_it() {
        let mut ports = NodePorts::new(RANGE);
        ports.quarantine(Protocol::Udp, 30_003, 31_003, None);
        ports.create_pools();
        ports.take(Protocol::Udp, 30_003);
        ports.block_quarantined(0);
        assert_eq!(ports.counts(0)[1], [99, 1, 0]);
    }

    #[test]
    fn forgotten_quarantine_leaves_no_bytes() {
        let mut ports = NodePorts::live(RANGE);
        let empty = bytes_of(&ports);
        ports.quarantine(Protocol::Tcp, 30_003, 1_000, None);
        assert!(!ports.is_unused() && ports.is_used_at(999) && !ports.is_used_at(1_000));
        ports.forget_quarantines(999);
        assert_ne!(bytes_of(&ports), empty);
        ports.forget_quarantines(1_000);
        assert_eq!((bytes_of(&ports), ports.is_unused(), ports.counts(0)[0]), (empty, true, [100, 0, 0]));
    }

    #[test]
    fn numbers_outside_the_range_are_ignored() {
        let mut ports = NodePorts::live(RANGE);
        ports.take(Protocol::Tcp, 29_999);
        ports.quarantine(Protocol::Tcp, 30_100, 5, None);
        assert_eq!((ports.counts(0)[0], ports.is_unused()), ([100, 0, 0], true));
    }
}
