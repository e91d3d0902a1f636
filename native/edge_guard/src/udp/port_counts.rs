//! Session counts by port, with a lookup of the port that has the most sessions.

use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct PortCounts {
    of: Vec<usize>,
    // Ordered by count.
    ranked: BTreeSet<(usize, usize)>,
    all: usize,
}

impl PortCounts {
    pub fn all(&self) -> usize {
        self.all
    }

    pub fn of(&self, port: usize) -> usize {
        self.of.get(port).copied().unwrap_or(0)
    }

    pub fn largest(&self) -> Option<usize> {
        self.ranked.last().map(|(_, port)| *port)
    }

    pub fn add(&mut self, port: usize) {
        if port >= self.of.len() {
            self.of.resize(port + 1, 0);
        }
        self.all += 1;
        self.change(port, self.of[port] + 1);
    }

    pub fn take(&mut self, port: usize) {
        self.all -= 1;
        self.change(port, self.of[port] - 1);
    }

    fn change(&mut self, port: usize, count: usize) {
        let before = std::mem::replace(&mut self.of[port], count);
        self.ranked.remove(&(before, port));
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
        let mut crowds = PortCounts::default();
        assert_eq!((crowds.largest(), crowds.of(5)), (None, 0));
        [3, 1, 1].into_iter().for_each(|port| crowds.add(port));
        assert_eq!((crowds.largest(), crowds.of(1), crowds.of(3), crowds.all()), (Some(1), 2, 1, 3));
        [1, 1].into_iter().for_each(|port| crowds.take(port));
        assert_eq!((crowds.largest(), crowds.of(1), crowds.all()), (Some(3), 0, 1));
        crowds.take(3);
        assert_eq!((crowds.largest(), crowds.ranked.len()), (None, 0));
    }
}
