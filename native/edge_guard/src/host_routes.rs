//! Routes by HTTP host name: to game servers, and to configured backends such as the API and the CDN.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::Backend;
use crate::live_route::LiveRoute;

#[derive(Debug, Default)]
pub struct HostRoutes {
    plain: HashMap<String, Arc<LiveRoute>>,
    tls: HashMap<String, Arc<LiveRoute>>,
    configured: HashMap<String, Arc<LiveRoute>>,
}

impl HostRoutes {
    #[must_use]
    pub fn new(backends: &[Backend]) -> Self {
        let mut configured = HashMap::new();
        for backend in backends {
            let live = LiveRoute::for_backend(backend.address.clone(), backend.proxy_protocol);
            for host in &backend.hosts {
                configured.insert(host.clone(), live.clone());
            }
        }
        Self { configured, ..Self::default() }
    }

    /// Returns the route of a host name, which must be in lower case and without a port.
    #[must_use]
    pub fn find(&self, is_tls: bool, host: &str) -> Option<&Arc<LiveRoute>> {
        let routes = if is_tls { &self.tls } else { &self.plain };
        routes.get(host).or_else(|| find_name(&self.configured, host))
    }

    pub fn put(&mut self, is_tls: bool, host: &str, live: &Arc<LiveRoute>) {
        self.routes(is_tls).insert(host.to_owned(), live.clone());
    }

    #[must_use]
    pub fn has(&self, is_tls: bool, host: &str) -> bool {
        self.find(is_tls, host).is_some()
    }

    pub fn remove(&mut self, is_tls: bool, host: &str, live: &Arc<LiveRoute>) {
        let routes = self.routes(is_tls);
        if routes.get(host).is_some_and(|current| Arc::ptr_eq(current, live)) {
            routes.remove(host);
        }
    }

    fn routes(&mut self, is_tls: bool) -> &mut HashMap<String, Arc<LiveRoute>> {
        if is_tls { &mut self.tls } else { &mut self.plain }
    }
}

/// Returns the entry of a host name such as `a.example.com`, or else the entry of `*.example.com`.
pub fn find_name<'a, T>(names: &'a HashMap<String, T>, name: &str) -> Option<&'a T> {
    names.get(name).or_else(|| {
        let (_, parent) = name.split_once('.')?;
        names.get(&format!("*.{parent}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_stands_for_one_label() {
        let names = HashMap::from([("*.cdn.example".to_owned(), 1), ("a.cdn.example".to_owned(), 2)]);
        assert_eq!(find_name(&names, "a.cdn.example"), Some(&2));
        assert_eq!(find_name(&names, "b.cdn.example"), Some(&1));
        assert_eq!(find_name(&names, "c.b.cdn.example"), None);
        assert_eq!(find_name(&names, "cdn.example"), None);
    }

    #[test]
    fn reassigned_host_is_not_removed_by_its_former_route() {
        let (first, second) = (LiveRoute::new(false, None), LiveRoute::new(false, None));
        let mut hosts = HostRoutes::default();
        hosts.put(false, "a", &first);
        hosts.put(false, "a", &second);
        hosts.remove(false, "a", &first);
        assert!(hosts.find(false, "a").is_some_and(|current| Arc::ptr_eq(current, &second)));
        assert!(!hosts.has(true, "a"));
    }
}
