//! Commands to the threads of UDP ports, with their content.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::datagram_rate::RateLimit;
use super::session_table::{Player, Rank};
use crate::config::Config;
use crate::player_sessions::PlayerSessions;
use crate::traffic::Traffic;

#[derive(Debug)]
pub struct UdpPort {
    pub number: u64,
    pub socket: Arc<UdpSocket>,
    pub backend: Option<SocketAddr>,
    pub sends_proxy_header: bool,
    pub traffic: Arc<Traffic>,
    /// Sessions of the lobby's players, if the port counts them.
    pub players: Option<Arc<PlayerSessions>>,
    /// False if the players' TCP connections to the same port count.
    pub counts_sessions: bool,
}

/// UDP session that moves to a newer process in a handover.
#[derive(Debug)]
pub struct MigratedSession {
    pub number: u64,
    pub player: Player,
    pub backend: SocketAddr,
    pub rank: Rank,
    pub socket: Arc<OwnedFd>,
}

/// Command to the thread of a port.
pub enum LoopCommand {
    Open(UdpPort, Vec<MigratedSession>),
    SetBackend(u64, Option<SocketAddr>),
    Close(u64, oneshot::Sender<()>),
    RunTask(Box<dyn FnOnce() + Send>),
    Pause(oneshot::Sender<Vec<MigratedSession>>),
    SetLimits(SessionLimits),
    Resume,
    CloseAll(oneshot::Sender<()>),
}

#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    pub sessions: usize,
    pub sessions_per_route: usize,
    pub sessions_per_address: usize,
    pub sessions_per_second: usize,
    pub session_rate: RateLimit,
    pub port_rate: RateLimit,
    pub idle: Duration,
}

impl SessionLimits {
    pub fn for_each_thread(self, threads: usize) -> Self {
        Self {
            sessions: self.sessions.div_ceil(threads),
            sessions_per_second: self.sessions_per_second.div_ceil(threads),
            ..self
        }
    }
}

impl From<&Config> for SessionLimits {
    fn from(config: &Config) -> Self {
        Self {
            sessions: config.limits.datagram_sessions,
            sessions_per_route: config.limits.datagram_sessions_per_route,
            sessions_per_address: config.limits.datagram_sessions_per_address,
            sessions_per_second: config.limits.datagram_sessions_per_second,
            session_rate: RateLimit {
                packets_per_second: config.limits.datagram_session_packets_per_second,
                bytes_per_second: config.limits.datagram_session_bytes_per_second,
            },
            port_rate: RateLimit {
                packets_per_second: config.limits.datagram_port_packets_per_second,
                bytes_per_second: config.limits.datagram_port_bytes_per_second,
            },
            idle: config.timeouts.datagram_idle,
        }
    }
}
