//! Connection limits in total, per route and per client address, and the limit of file descriptors.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use crate::address;
use crate::config::LimitSettings;
use crate::metrics::ConnectionRefusal;

#[derive(Debug)]
pub struct ConnectionLimits {
    total_max: AtomicUsize,
    route_max: AtomicUsize,
    address_max: AtomicUsize,
    total: AtomicUsize,
    addresses: Mutex<HashMap<IpAddr, usize>>,
}

/// Permit for one connection. A drop releases the permit.
#[derive(Debug)]
pub struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    source: Option<IpAddr>,
    of_route: Option<Arc<AtomicUsize>>,
}

impl ConnectionLimits {
    #[must_use]
    pub fn new(settings: &LimitSettings) -> Self {
        Self {
            total_max: settings.connections.into(),
            route_max: settings.connections_per_route.into(),
            address_max: settings.connections_per_address.into(),
            total: AtomicUsize::new(0),
            addresses: Mutex::default(),
        }
    }

    /// Changes the limits for new connections.
    pub fn change(&self, settings: &LimitSettings) {
        self.total_max.store(settings.connections, SeqCst);
        self.route_max.store(settings.connections_per_route, SeqCst);
        self.address_max.store(settings.connections_per_address, SeqCst);
    }

    #[must_use]
    pub fn is_full(&self) -> bool {
        self.total.load(SeqCst) >= self.total_max.load(SeqCst)
    }

    /// Admits a connection, or returns the limit that it would exceed.
    ///
    /// `client` is `None` for a trusted proxy, which has no limit per client. `of_route` is `None` if a host name will
    /// select the route. Then the limit per route is not checked.
    pub fn admit(
        self: &Arc<Self>,
        client: Option<IpAddr>,
        of_route: Option<&Arc<AtomicUsize>>,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        if !increment_below(&self.total, &self.total_max) {
            return Err(ConnectionRefusal::All);
        }
        // Returns each count on drop, also if a later limit refuses.
        let mut permit = ConnectionPermit { limits: self.clone(), source: None, of_route: None };
        if let Some(of_route) = of_route {
            if !increment_below(of_route, &self.route_max) {
                return Err(ConnectionRefusal::Route);
            }
            permit.of_route = Some(of_route.clone());
        }
        if let Some(source) = client.map(address::client_key) {
            let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
            let count = addresses.entry(source).or_default();
            if *count >= self.address_max.load(SeqCst) {
                drop(addresses);
                return Err(ConnectionRefusal::Address);
            }
            *count += 1;
            permit.source = Some(source);
        }
        Ok(permit)
    }
}

fn increment_below(count: &AtomicUsize, maximum: &AtomicUsize) -> bool {
    let maximum = maximum.load(SeqCst);
    count.fetch_update(SeqCst, SeqCst, |count| (count < maximum).then_some(count + 1)).is_ok()
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limits.total.fetch_sub(1, SeqCst);
        if let Some(of_route) = &self.of_route {
            of_route.fetch_sub(1, SeqCst);
        }
        let Some(source) = self.source else { return };
        let mut addresses = self.limits.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = addresses.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&source);
            }
        }
    }
}

/// Raises the limit of file descriptors. Returns settings that fit the new limit, and this limit.
///
/// A connection needs two descriptors, and a UDP session needs one. If there are too few, connections and UDP sessions
/// get half each.
#[must_use]
pub fn fit_descriptors(settings: &LimitSettings) -> (LimitSettings, u64) {
    let needed_descriptors = needed_descriptors(settings) + RESERVED_DESCRIPTORS;
    let available = raise_descriptors(needed_descriptors);
    (fit_to_descriptors(settings, available), available)
}

/// Descriptors reserved for routes, pooled connections, pipes and the process itself.
const RESERVED_DESCRIPTORS: u64 = 8_192;

fn needed_descriptors(settings: &LimitSettings) -> u64 {
    2 * settings.connections as u64 + settings.datagram_sessions as u64
}

fn fit_to_descriptors(settings: &LimitSettings, available: u64) -> LimitSettings {
    let free =
        usize::try_from(available.saturating_sub(RESERVED_DESCRIPTORS.min(available / 10))).unwrap_or(usize::MAX);
    // Connections or UDP sessions get more than half if the others need less.
    let for_connections = (2 * settings.connections).min(free.saturating_sub(settings.datagram_sessions).max(free / 2));
    LimitSettings {
        connections: (for_connections / 2).max(1),
        datagram_sessions: settings.datagram_sessions.min(free - for_connections).max(1),
        ..settings.clone()
    }
}

fn raise_descriptors(needed_descriptors: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 1_024;
        }
        if limit.rlim_max < needed_descriptors {
            // Only privileged processes may raise the hard limit.
            let raised = libc::rlimit { rlim_cur: needed_descriptors, rlim_max: needed_descriptors };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 {
                return needed_descriptors;
            }
        }
        let raised_soft = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised_soft) == 0 {
            raised_soft.rlim_cur
        } else {
            limit.rlim_cur
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(total: usize, route: usize, address: usize) -> Arc<ConnectionLimits> {
        let mut settings = crate::config::Config::parse(r#"{"folder": "/a", "source": "/b"}"#).unwrap().limits;
        settings.connections = total;
        settings.connections_per_route = route;
        settings.connections_per_address = address;
        Arc::new(ConnectionLimits::new(&settings))
    }

    #[test]
    fn each_limit_refuses_with_its_own_reason() {
        let (one, two) = (Arc::default(), Arc::default());
        let first_client: IpAddr = "10.0.0.1".parse().unwrap();
        let second_client: IpAddr = "10.0.0.2".parse().unwrap();
        let limits = limits(3, 2, 2);
        let first = limits.admit(Some(first_client), Some(&one)).unwrap();
        let _second = limits.admit(Some(first_client), Some(&one)).unwrap();
        assert_eq!(limits.admit(Some(second_client), Some(&one)).unwrap_err(), ConnectionRefusal::Route);
        assert_eq!(limits.admit(Some(first_client), Some(&two)).unwrap_err(), ConnectionRefusal::Address);
        let _third = limits.admit(Some(second_client), Some(&two)).unwrap();
        assert!(limits.is_full());
        assert_eq!(limits.admit(Some(second_client), Some(&two)).unwrap_err(), ConnectionRefusal::All);
        drop(first);
        assert!(limits.admit(Some(second_client), Some(&one)).is_ok(), "a closed connection frees its permit");
    }

    #[test]
    fn changed_limits_apply_to_new_connections_only() {
        let route = Arc::default();
        let first_client: IpAddr = "10.0.0.1".parse().unwrap();
        let limits = limits(9, 9, 2);
        let permits: Vec<_> = (0..2).map(|_| limits.admit(Some(first_client), Some(&route)).unwrap()).collect();
        let mut settings = crate::config::Config::parse(r#"{"folder": "/a", "source": "/b"}"#).unwrap().limits;
        settings.connections_per_address = 1;
        limits.change(&settings);
        assert_eq!(route.load(SeqCst), 2, "both continue");
        assert_eq!(limits.admit(Some(first_client), Some(&route)).unwrap_err(), ConnectionRefusal::Address);
        settings.connections_per_address = 3;
        limits.change(&settings);
        let _third = limits.admit(Some(first_client), Some(&route)).unwrap();
        settings.connections = 3;
        limits.change(&settings);
        assert_eq!(limits.admit(Some(first_client), Some(&route)).unwrap_err(), ConnectionRefusal::All);
        drop(permits);
        assert!(limits.admit(Some(first_client), Some(&route)).is_ok());
    }

    #[test]
    fn scarce_descriptors_are_divided_fairly() {
        let settings = crate::config::Config::parse(r#"{"folder": "/a", "source": "/b"}"#).unwrap().limits;
        let fitting = |connections, datagram_sessions, available| {
            let few =
                fit_to_descriptors(&LimitSettings { connections, datagram_sessions, ..settings.clone() }, available);
            (few.connections, few.datagram_sessions)
        };
        assert_eq!(fitting(4_000, 1_000, 1_000_000), (4_000, 1_000));
        assert_eq!(fitting(65_536, 16_384, 20_000), (4_500, 9_000));
        assert_eq!(fitting(65_536, 64, 20_000), (8_968, 64));
        assert_eq!(fitting(100, 16_384, 10_000), (100, 8_800));
    }

    #[test]
    fn ipv6_clients_of_one_64_network_share_a_limit() {
        let route = Arc::default();
        let limits = limits(9, 9, 1);
        let (first, second) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let _permit = limits.admit(Some(first), Some(&route)).unwrap();
        assert_eq!(limits.admit(Some(second), Some(&route)).unwrap_err(), ConnectionRefusal::Address);
        assert!(limits.admit(None, Some(&route)).is_ok(), "a proxy in front of us speaks for many");
    }
}
