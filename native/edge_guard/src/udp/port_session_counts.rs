//! Session counts by port, with a lookup of the port that has the most sessions.

use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct PortSessionCounts {
    by_port: Vec<usize>,
    // Ordered by count.
    ranked: BTreeSet<(usize, usize)>,
    total: usize,
}

impl PortSessionCounts {
    pub fn total(&self) -> usize {
        self.total
    }

    pub fn count(&self, port: usize) -> usize {
        self.by_port.get(port).copied().unwrap_or(0)
    }

    pub fn largest(&self) -> Option<usize> {
        self.ranked.last().map(|(_, port)| *port)
    }

    pub fn add(&mut self, port: usize) {
        if port >= self.by_port.len() {
            self.by_port.resize(port + 1, 0);
        }
        self.total += 1;
        self.change(port, self.by_port[port] + 1);
    }

    pub fn remove(&mut self, port: usize) {
        self.total -= 1;
        self.change(port, self.by_port[port] - 1);
    }

    fn change(&mut self, port: usize, count: usize) {
        let previous = std::mem::replace(&mut self.by_port[port], count);
        self.ranked.remove(&(previous, port));
        if count > 0 {
            self.ranked.insert((count, port));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_port_is_current_after_each_change() {
        let mut counts = PortSessionCounts::default();
        assert_eq!((counts.largest(), counts.count(5)), (None, 0));
        [3, 1, 1].into_iter().for_each(|port| counts.add(port));
        assert_eq!((counts.largest(), counts.count(1), counts.count(3), counts.total()), (Some(1), 2, 1, 3));
        [1, 1].into_iter().for_each(|port| counts.remove(port));
        assert_eq!((counts.largest(), counts.count(1), counts.total()), (Some(3), 0, 1));
        counts.remove(3);
        assert_eq!((counts.largest(), counts.ranked.len()), (None, 0));
    }
}
