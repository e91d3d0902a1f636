//! Port numbers of one protocol family at one node: free, leased, or quarantined.
//!
//! Derived from leases and quarantine, while the engine is live.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::command::{Id, Ms, PortRange};

const LEASED: u16 = u16::MAX;
const QUARANTINED: u16 = u16::MAX - 1;
/// A namespace with fewer quarantined ports than this is never over its fair share.
const FAIR_SHARE_THRESHOLD: usize = 64;

/// State of each port in the configured range: free, leased or quarantined. Other port numbers are ignored.
#[derive(Debug)]
pub(crate) struct PortPool {
    range: PortRange,
    /// State of each port: its position in `free`, or `LEASED`, or `QUARANTINED`.
    positions: Vec<u16>,
    free: Vec<u16>,
    quarantined: BTreeSet<(Ms, u16)>,
    /// Namespace of each quarantined port's last lease. Unknown after a restart.
    previous_owner: BTreeMap<u16, Id>,
    quarantined_by_namespace: BTreeMap<Id, usize>,
}

impl PortPool {
    pub(crate) fn new(range: PortRange) -> PortPool {
        let count = range.len();
        let free: Vec<u16> = (range.first..=range.last).take(count).collect();
        PortPool {
            range,
            positions: (0..count as u16).collect(),
            free,
            quarantined: BTreeSet::new(),
            previous_owner: BTreeMap::new(),
            quarantined_by_namespace: BTreeMap::new(),
        }
    }

    /// Returns true if a lease of `more` ports must be refused, so that other namespaces keep a share of the ports.
    ///
    /// This happens if the namespace has `n` quarantined ports, `n` is at least 64, and the lease would leave fewer
    /// than `n` free ports.
    pub(crate) fn exceeds_fair_share(&self, namespace: Id, more: usize) -> bool {
        let count = self.quarantined_by_namespace.get(&namespace).copied().unwrap_or(0);
        count >= FAIR_SHARE_THRESHOLD && self.free.len() < count + more
    }

    pub(crate) fn counts(&self, now: Ms) -> [usize; 3] {
        let rested = self.quarantined.range(..=(now, u16::MAX)).count();
        let (free, quarantined) = (self.free.len() + rested, self.quarantined.len() - rested);
        [free, self.range.len() - free - quarantined, quarantined]
    }

    pub(crate) fn draw(&self, random: u64, excluded: &[u16]) -> Option<u16> {
        if self.free.len() <= excluded.iter().filter(|number| self.is_free(**number)).count() {
            return None;
        }
        self.draw_where(random, |number| !excluded.contains(&number))
    }

    /// Returns a free port that fulfils a condition. Checks each free port at most once.
    pub(crate) fn draw_where(&self, random: u64, is_allowed: impl Fn(u16) -> bool) -> Option<u16> {
        let start = ((u128::from(random) * self.free.len() as u128) >> 64) as usize;
        self.free[start..].iter().chain(&self.free[..start]).copied().find(|number| is_allowed(*number))
    }

    pub(crate) fn is_free(&self, number: u16) -> bool {
        self.at(number).is_some_and(|at| self.positions[at] < QUARANTINED)
    }

    pub(crate) fn take(&mut self, number: u16) {
        let Some(at) = self.at(number) else { return };
        match self.positions[at] {
            LEASED => return,
            QUARANTINED => {
                self.quarantined.retain(|(_, other)| *other != number);
                self.forget_previous_owner(number);
            }
            position => {
                self.free.swap_remove(usize::from(position));
                if let Some(moved) = self.free.get(usize::from(position)) {
                    let moved_at = usize::from(moved - self.range.first);
                    self.positions[moved_at] = position;
                }
            }
        }
        self.positions[at] = LEASED;
    }

    /// Quarantines a port until a time. If `was` is set, the port counts as quarantined for this namespace.
    pub(crate) fn quarantine(&mut self, number: u16, until: Ms, was: Option<Id>) {
        let Some(at) = self.at(number) else { return };
        self.take(number);
        self.positions[at] = QUARANTINED;
        self.quarantined.insert((until, number));
        if let Some(namespace) = was {
            self.previous_owner.insert(number, namespace);
            *self.quarantined_by_namespace.entry(namespace).or_default() += 1;
        }
    }

    fn forget_previous_owner(&mut self, number: u16) {
        let Some(namespace) = self.previous_owner.remove(&number) else { return };
        if let Entry::Occupied(mut count) = self.quarantined_by_namespace.entry(namespace) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    pub(crate) fn release_quarantined(&mut self, now: Ms) {
        while let Some((until, number)) = self.quarantined.first().copied()
            && until <= now
        {
            self.quarantined.pop_first();
            self.forget_previous_owner(number);
            self.positions[usize::from(number - self.range.first)] = self.free.len() as u16;
            self.free.push(number);
        }
    }

    fn at(&self, number: u16) -> Option<usize> {
        // A journal may name ports of an earlier range.
        self.range.contains(number).then(|| usize::from(number - self.range.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: PortRange = PortRange { first: 30_000, last: 30_099 };

    fn numbers(pool: &PortPool) -> Vec<u16> {
        let mut free = pool.free.clone();
        free.sort_unstable();
        free
    }

    #[test]
    fn only_free_ports_are_drawn() {
        let mut pool = PortPool::new(RANGE);
        for number in (30_000..30_100).filter(|number| number % 20 != 7) {
            pool.take(number);
        }
        let step = u64::MAX / 1_000;
        let mut drawn: Vec<u16> = (0..1_000).filter_map(|at| pool.draw(at * step, &[])).collect();
        drawn.sort_unstable();
        assert!([30_007, 30_027, 30_047, 30_067, 30_087].iter().all(|number| {
            let times = drawn.iter().filter(|one| *one == number).count();
            (190..=210).contains(&times)
        }));
        drawn.dedup();
        assert_eq!(drawn, numbers(&pool));
        assert_eq!(pool.counts(0), [5, 95, 0]);
    }

    #[test]
    fn ports_of_one_lease_differ() {
        let mut pool = PortPool::new(RANGE);
        (30_002..30_100).for_each(|number| pool.take(number));
        let first = pool.draw(0, &[]).expect("two are free");
        let second = pool.draw(0, &[first]).expect("one is free");
        assert_ne!(first, second);
        assert_eq!(pool.draw(0, &[first, second]), None);
        assert_eq!(pool.draw(u64::MAX, &[29_999, 30_050]), Some(pool.free[1]), "those were not free anyway");
    }

    #[test]
    fn quarantine_lasts_exactly_until_its_end() {
        let mut pool = PortPool::new(PortRange { first: 30_000, last: 30_001 });
        pool.take(30_000);
        pool.take(30_001);
        pool.quarantine(30_001, 60_000, None);
        pool.release_quarantined(59_999);
        assert_eq!((pool.draw(7, &[]), pool.counts(59_999)), (None, [0, 1, 1]));
        assert_eq!(pool.counts(60_000), [1, 1, 0], "not released yet");
        pool.release_quarantined(60_000);
        assert_eq!((pool.draw(7, &[]), pool.counts(60_000)), (Some(30_001), [1, 1, 0]));
    }

    #[test]
    fn quarantined_ports_limit_the_share_of_a_namespace() {
        let [greedy, another, modest] = [1, 2, 3].map(|number| Id([number; 16]));
        let mut pool = PortPool::new(PortRange { first: 30_000, last: 30_299 });
        let mut next = 30_000;
        let mut take_and_give_back = |pool: &mut PortPool, namespace| {
            let mut count = 0;
            while !pool.exceeds_fair_share(namespace, 1) {
                pool.quarantine(next, 60_000, Some(namespace));
                (next, count) = (next + 1, count + 1);
            }
            count
        };
        assert_eq!(take_and_give_back(&mut pool, greedy), 150, "half");
        assert_eq!(take_and_give_back(&mut pool, another), 75, "half of that");
        assert_eq!(pool.counts(0), [75, 0, 225]);
        (30_225..30_300).for_each(|number| {
            assert!(!pool.exceeds_fair_share(modest, 1), "a namespace without quarantined ports may take all");
            pool.take(number);
        });
        pool.release_quarantined(60_000);
        assert!(!pool.exceeds_fair_share(greedy, 225), "a released port counts for no namespace");
        assert!(pool.previous_owner.is_empty() && pool.quarantined_by_namespace.is_empty());
    }

    #[test]
    fn few_quarantined_ports_limit_no_namespace() {
        let mut pool = PortPool::new(RANGE);
        let one = Id([1; 16]);
        (30_000..30_063).for_each(|number| pool.quarantine(number, 60_000, Some(one)));
        (30_063..30_099).for_each(|number| pool.take(number));
        assert!(!pool.exceeds_fair_share(one, 1));
        pool.quarantine(30_098, 60_000, Some(one));
        assert!(pool.exceeds_fair_share(one, 1));
    }
}
