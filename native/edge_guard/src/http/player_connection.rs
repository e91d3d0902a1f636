//! An HTTP connection of a player, and its idle connections to backends.

use std::net::SocketAddr;
use std::sync::Arc;

use super::connection_activity::ActivityTracker;
use super::headers;
use crate::address::BackendAddress;
use crate::backend_pool::DedicatedConnection;
use crate::connection_workers::{ConnectionWorker, OpenConnection};
use crate::live_route::LiveRoute;
use crate::request_body::{BackendSender, BodyProgress, RequestBody};

#[derive(Debug)]
pub struct PlayerConnection {
    pub worker: Arc<ConnectionWorker>,
    pub route: Option<Arc<LiveRoute>>,
    pub is_tls: bool,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub is_proxied: bool,
    pub forwarded: headers::ForwardedHeaders,
    pub tracker: Arc<ActivityTracker>,
    /// Idle backend connection that began with the PROXY header of this player.
    pub dedicated: DedicatedConnection<RequestBody>,
    pub open: Arc<OpenConnection>,
}

pub struct BackendConnection {
    /// True if the connection began with this player's PROXY header. Other players must not use such a connection.
    pub is_dedicated: bool,
    pub route: u64,
    pub backend: BackendAddress,
    pub sender: BackendSender,
    pub progress: Option<Arc<BodyProgress>>,
}

impl PlayerConnection {
    pub fn take_idle(&self, live: &LiveRoute, backend: &BackendAddress) -> Option<BackendSender> {
        // Taken also for a shared backend, which closes it: only one of both is counted.
        let dedicated = self.dedicated.take(live.number, backend);
        if live.sends_proxy_header { dedicated } else { self.worker.pool.take(live.number, backend) }
    }

    pub fn store_idle(&self, BackendConnection { is_dedicated, route, backend, sender, .. }: BackendConnection) {
        if !is_dedicated {
            self.worker.pool.put(route, backend, sender);
        } else if self.tracker.is_alone() {
            // Concurrent requests keep only the last connection, because only one is counted.
            self.dedicated.put(route, backend, sender);
        }
    }
}
