//! Hierarchical timer wheel with one-millisecond ticks and intrusive links.
//!
//! Insert and remove are O(1). Due nodes are returned in order of deadline. A node is on the lowest level where its
//! deadline is less than 64 buckets away. The node moves down once time reaches its bucket. Each step moves one node, so
//! no boundary moves many nodes at once.

use crate::command::Ms;

pub(crate) const NONE: u32 = u32::MAX;

const LEVELS: usize = 8;
const DIGIT_BITS: u32 = 6;
const BUCKETS: usize = 1 << DIGIT_BITS;
const UNLINKED: u16 = u16::MAX;
/// Maximum time from now to a bucket. Nodes with later deadlines wait in the last bucket.
const HORIZON: Ms = 63 << (DIGIT_BITS * (LEVELS as u32 - 1));

#[derive(Clone, Copy, Debug)]
pub(crate) struct TimerLinks {
    next: u32,
    previous: u32,
    bucket: u16,
}

impl TimerLinks {
    pub(crate) const UNLINKED: TimerLinks = TimerLinks { next: NONE, previous: NONE, bucket: UNLINKED };
}

pub(crate) trait TimerNodes {
    fn links(&mut self, node: u32) -> &mut TimerLinks;
    /// Returns the deadline of a node. It must not change while the node is in the wheel.
    fn deadline(&self, node: u32) -> Ms;
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WheelStep {
    /// This node is due. It stays in the wheel until it is removed.
    Due(u32),
    Advanced,
    Idle,
}

pub(crate) struct TimerWheel {
    elapsed: Ms,
    /// `step` has no work before this time.
    idle_until: Ms,
    occupied: [u64; LEVELS],
    heads: [u32; LEVELS * BUCKETS],
    tails: [u32; LEVELS * BUCKETS],
}

impl TimerWheel {
    pub(crate) fn starting_at(elapsed: Ms) -> TimerWheel {
        TimerWheel {
            elapsed,
            idle_until: Ms::MAX,
            occupied: [0; LEVELS],
            heads: [NONE; LEVELS * BUCKETS],
            tails: [NONE; LEVELS * BUCKETS],
        }
    }

    pub(crate) fn insert(&mut self, nodes: &mut impl TimerNodes, node: u32) {
        let deadline = nodes.deadline(node).clamp(self.elapsed, self.elapsed + HORIZON);
        let mut level = 0;
        while (deadline >> (level * DIGIT_BITS)) - (self.elapsed >> (level * DIGIT_BITS)) >= BUCKETS as Ms {
            level += 1;
        }
        let digit = (deadline >> (level * DIGIT_BITS)) as usize & (BUCKETS - 1);
        let bucket = level as usize * BUCKETS + digit;
        self.idle_until = self.idle_until.min(deadline >> (level * DIGIT_BITS) << (level * DIGIT_BITS));
        let previous = self.tails[bucket];
        let links = nodes.links(node);
        debug_assert_eq!(links.bucket, UNLINKED, "a node is in a wheel once");
        *links = TimerLinks { next: NONE, previous, bucket: bucket as u16 };
        if previous == NONE {
            self.heads[bucket] = node;
            self.occupied[level as usize] |= 1 << digit;
        } else {
            nodes.links(previous).next = node;
        }
        self.tails[bucket] = node;
    }

    pub(crate) fn remove(&mut self, nodes: &mut impl TimerNodes, node: u32) {
        let TimerLinks { next, previous, bucket } = *nodes.links(node);
        if bucket == UNLINKED {
            return;
        }
        *nodes.links(node) = TimerLinks::UNLINKED;
        let bucket = bucket as usize;
        if previous == NONE {
            self.heads[bucket] = next;
        } else {
            nodes.links(previous).next = next;
        }
        if next == NONE {
            self.tails[bucket] = previous;
        } else {
            nodes.links(next).previous = previous;
        }
        if self.heads[bucket] == NONE {
            self.occupied[bucket / BUCKETS] &= !(1 << (bucket % BUCKETS));
        }
    }

    pub(crate) fn step(&mut self, nodes: &mut impl TimerNodes, now: Ms) -> WheelStep {
        if now < self.idle_until {
            self.elapsed = self.elapsed.max(now);
            return WheelStep::Idle;
        }
        let Some((level, bucket, time)) = self.next_bucket().filter(|(_, _, time)| *time <= now) else {
            self.elapsed = self.elapsed.max(now);
            self.idle_until = self.next_work().unwrap_or(Ms::MAX);
            return WheelStep::Idle;
        };
        self.elapsed = self.elapsed.max(time);
        let node = self.heads[bucket];
        if level == 0 {
            return WheelStep::Due(node);
        }
        self.remove(nodes, node);
        self.insert(nodes, node);
        WheelStep::Advanced
    }

    /// Returns the time of the next work for `step`: a due node, or a move of nodes between levels.
    pub(crate) fn next_work(&self) -> Option<Ms> {
        self.next_bucket().map(|(_, _, time)| time)
    }

    /// Returns `(level, bucket, first tick)` of the earliest bucket, or None without nodes.
    fn next_bucket(&self) -> Option<(usize, usize, Ms)> {
        let mut next = None;
        let mut earliest = Ms::MAX;
        // On a tie the highest level wins, because its nodes may be due first.
        for level in (0..LEVELS).rev() {
            let occupied = self.occupied[level];
            if occupied == 0 {
                continue;
            }
            let shift = level as u32 * DIGIT_BITS;
            let current = self.elapsed >> shift;
            let ahead = occupied.rotate_right(current as u32 & (BUCKETS as u32 - 1)).trailing_zeros();
            let time = ((current + Ms::from(ahead)) << shift).max(self.elapsed);
            if time < earliest {
                let digit = (current + Ms::from(ahead)) as usize & (BUCKETS - 1);
                earliest = time;
                next = Some((level, level * BUCKETS + digit, time));
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Nodes(Vec<(TimerLinks, Ms)>);

    impl TimerNodes for Nodes {
        fn links(&mut self, node: u32) -> &mut TimerLinks {
            &mut self.0[node as usize].0
        }
        fn deadline(&self, node: u32) -> Ms {
            self.0[node as usize].1
        }
    }

    fn due_until(wheel: &mut TimerWheel, nodes: &mut Nodes, now: Ms) -> Vec<u32> {
        let mut due = Vec::new();
        loop {
            match wheel.step(nodes, now) {
                WheelStep::Due(node) => {
                    wheel.remove(nodes, node);
                    due.push(node);
                }
                WheelStep::Advanced => {}
                WheelStep::Idle => return due,
            }
        }
    }

    #[test]
    fn nodes_are_due_exactly_on_their_tick() {
        for deadline in [1, 63, 64, 65, 4_095, 4_096, 4_097, 262_143, 262_144, 3_600_000, 1 << 40] {
            let mut wheel = TimerWheel::starting_at(0);
            let mut nodes = Nodes(vec![(TimerLinks::UNLINKED, deadline)]);
            wheel.insert(&mut nodes, 0);
            assert_eq!(due_until(&mut wheel, &mut nodes, deadline - 1), [] as [u32; 0], "{deadline}");
            assert!(wheel.next_work().is_some_and(|time| time <= deadline));
            assert_eq!(due_until(&mut wheel, &mut nodes, deadline), [0], "{deadline}");
            assert_eq!(wheel.next_work(), None);
        }
    }

    #[test]
    fn past_deadline_is_due_at_once() {
        let mut wheel = TimerWheel::starting_at(0);
        let mut nodes = Nodes(vec![(TimerLinks::UNLINKED, 5)]);
        due_until(&mut wheel, &mut nodes, 1_000);
        wheel.insert(&mut nodes, 0);
        assert_eq!(due_until(&mut wheel, &mut nodes, 1_000), [0]);
    }

    #[test]
    fn work_can_stop_after_any_step() {
        let mut wheel = TimerWheel::starting_at(0);
        let mut nodes = Nodes((0..4).map(|node| (TimerLinks::UNLINKED, 5_000 - node)).collect());
        (0..4).for_each(|node| wheel.insert(&mut nodes, node));
        let mut steps = 0;
        while wheel.step(&mut nodes, 10_000) == WheelStep::Advanced {
            steps += 1;
        }
        assert!(steps >= 4, "each node moved at least once");
        assert_eq!(wheel.step(&mut nodes, 10_000), WheelStep::Due(3), "still there");
        assert_eq!(due_until(&mut wheel, &mut nodes, 10_000), [3, 2, 1, 0], "in order of deadline");
    }

    proptest! {
        #[test]
        fn wheel_matches_a_sorted_list(
            commands in prop::collection::vec((0u8..4, 0u64..40, 0u32..24), 1..400),
        ) {
            let mut wheel = TimerWheel::starting_at(0);
            let mut nodes = Nodes((0..40).map(|_| (TimerLinks::UNLINKED, 0)).collect());
            let mut model: Vec<(Ms, u64, u32)> = Vec::new();
            let (mut now, mut order) = (0u64, 0u64);
            for (command, node, power) in commands {
                let node = node as u32;
                let distance = (u64::from(node) * 0x9e37_79b9 % (1 << power)) + 1;
                match command {
                    0 | 1 if !model.iter().any(|(_, _, known)| *known == node) => {
                        nodes.0[node as usize].1 = now + distance;
                        wheel.insert(&mut nodes, node);
                        model.push((now + distance, order, node));
                        order += 1;
                    }
                    2 => {
                        wheel.remove(&mut nodes, node);
                        model.retain(|(_, _, known)| *known != node);
                    }
                    _ => {
                        now += distance;
                        let due = due_until(&mut wheel, &mut nodes, now);
                        model.sort_unstable();
                        let split = model.partition_point(|(deadline, _, _)| *deadline <= now);
                        let mut expected: Vec<(Ms, u32)> = model.drain(..split).map(|(at, _, n)| (at, n)).collect();
                        let mut due_timers: Vec<(Ms, u32)> = due.iter().map(|n| (nodes.0[*n as usize].1, *n)).collect();
                        prop_assert!(due_timers.is_sorted_by_key(|(at, _)| *at));
                        expected.sort_unstable();
                        due_timers.sort_unstable();
                        prop_assert_eq!(due_timers, expected);
                    }
                }
                let first = model.iter().map(|(at, _, _)| *at).min();
                prop_assert!(wheel.next_work().unwrap_or(Ms::MAX) <= first.unwrap_or(Ms::MAX));
            }
        }
    }
}
