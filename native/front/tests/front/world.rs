//! A running front with a lobby.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hosting_core::{Attached, HashKey, Refusal};
use hosting_front::{
    AnswerTemplate, Answers, Buckets, ClientAddresses, ClientLimits, ConnectionBudget, Front, FrontOptions, HandedOver,
    LobbyAnswers, Namespaces, Operations, Places, PlayerAddresses, Timeouts,
};
use hosting_shard::Shard;
use ipnet::IpNet;

use crate::client::Client;
use crate::namespace::tokens_left;
use crate::shard::{self, Clock};

/// Time in which everything that a test waits for must happen.
pub const LIMIT: Duration = Duration::from_secs(30);
/// A timeout that no test reaches.
pub const NEVER: Duration = Duration::from_secs(600);
/// A timeout for which a test waits.
pub const SHORT: Duration = Duration::from_millis(50);

pub struct Setup {
    pub budget: usize,
    pub proxies: Vec<IpNet>,
    pub has_proxy_headers: bool,
    pub timeouts: Timeouts,
    pub limits: Limits,
    /// Length of each refusal's code.
    pub code_bytes: usize,
    /// Whether the world keeps the listener, as a supervisor does.
    pub is_listener_shared: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        let timeouts = Timeouts { receive: NEVER, keep_alive: NEVER };
        Setup {
            budget: 100,
            proxies: Vec::new(),
            has_proxy_headers: false,
            timeouts,
            limits: Limits::default(),
            code_bytes: 0,
            is_listener_shared: false,
        }
    }
}

/// Bursts of the rate limits, which do not refill during a test.
#[derive(Clone, Copy)]
pub struct Limits {
    pub tokens: u32,
    pub token_addresses: u32,
    pub client_addresses: u32,
    pub groups: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { tokens: 1_000, token_addresses: 1_000, client_addresses: 1_000, groups: 1_000 }
    }
}

impl Limits {
    fn buckets(self) -> ClientLimits {
        let buckets = |burst| Arc::new(Buckets::new(1e-3, burst, 1_000));
        ClientLimits {
            tokens: buckets(self.tokens),
            token_addresses: buckets(self.token_addresses),
            client_addresses: buckets(self.client_addresses),
            groups: buckets(self.groups),
        }
    }
}

/// The fields are dropped in this order.
pub struct World {
    pub front: Front,
    pub shard: Arc<Shard>,
    pub budget: Arc<ConnectionBudget>,
    pub lobby: Attached,
    pub namespaces: Arc<Namespaces>,
    pub hash: Arc<HashKey>,
    pub limits: ClientLimits,
    pub address: SocketAddr,
    pub shared_listener: Option<TcpListener>,
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts a front with a shard that makes its events durable at once.
    pub fn new() -> World {
        World::with(Setup::default())
    }

    pub fn with(setup: Setup) -> World {
        World::start(setup, |folder| (shard::writing_shard(folder), ())).0
    }

    /// Starts a front with a stepped shard, for [`World::commit`].
    pub fn stepped() -> (World, Arc<Clock>) {
        let (world, clock) = World::start(Setup::default(), shard::stepped_shard);
        world.commit();
        (world, clock)
    }

    fn start<T>(setup: Setup, new_shard: impl FnOnce(&Path) -> (Arc<Shard>, T)) -> (World, T) {
        let folder = tempfile::tempdir().unwrap();
        let (shard, clock) = new_shard(folder.path());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared_listener = setup.is_listener_shared.then(|| listener.try_clone().unwrap());
        let budget = Arc::new(ConnectionBudget::new(setup.budget));
        let operations = operations(shard.clone(), setup.limits, setup.code_bytes);
        let (namespaces, hash) = (operations.namespaces.clone(), operations.hash.clone());
        let limits = operations.limits.clone();
        let options = FrontOptions {
            listener,
            budget: budget.clone(),
            operations,
            duration_bounds: vec![Duration::from_secs(1)],
            addresses: ClientAddresses {
                proxies: setup.proxies,
                has_proxy_headers: setup.has_proxy_headers,
                game_servers: Vec::new(),
            },
            request_bytes_max: 8 * 1024,
            timeouts: setup.timeouts,
        };
        let lobby = shard::new_lobby(&shard, 1);
        let front = Front::start(options).unwrap();
        let world =
            World { front, shard, budget, lobby, namespaces, hash, limits, address, shared_listener, _folder: folder };
        (world, clock)
    }

    pub fn commit(&self) {
        shard::commit(&self.shard);
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn new_player(&self) -> String {
        shard::new_player(&self.shard, self.lobby.lobby)
    }

    /// Sends a request that Python must get. Checks that the engine and the rate limits stay as they were.
    pub fn check_left_to_python(&self, request: &[u8]) {
        let state = || {
            let engine = self.shard.engine();
            (engine.last_lsn(), engine.durable_hash(), engine.namespace_counts(), tokens_left(&self.limits))
        };
        let (mut client, before) = (self.connect(), state());
        client.send(request);
        let unread = self.handed_over().unread;
        assert!(unread == request, "{}", request.escape_ascii());
        assert!(state() == before, "the engine or a limit has changed: {}", request.escape_ascii());
    }

    /// Returns the number of reserved and of connected players of the lobby.
    pub fn players(&self) -> [u32; 2] {
        shard::players(&self.shard, self.lobby.lobby)
    }

    /// Returns a plain request that confirms a player.
    pub fn request(&self, player_token: &str) -> Vec<u8> {
        request_with(&self.lobby.lobby_token, format!(r#"{{"player_token":"{player_token}"}}"#))
    }

    pub fn request_of_new_player(&self) -> Vec<u8> {
        self.request(&self.new_player())
    }

    pub fn request_with_body(&self, body: impl AsRef<[u8]>) -> Vec<u8> {
        request_with(&self.lobby.lobby_token, body)
    }

    /// Returns a plain request that the engine refuses with `PLAYER_TOKEN_INVALID`, because another key signed the
    /// player token.
    pub fn refused_request(&self) -> Vec<u8> {
        self.request(&shard::player_token(shard::KEY_ID, 8, self.lobby.lobby))
    }

    /// Returns the number of answers since the last call.
    pub fn take_answered_count(&self) -> u64 {
        let measured = self.front.take_measurements().1;
        measured.operations.iter().flat_map(|counts| &counts.codes).sum()
    }

    /// Makes the front handle all that clients have sent.
    pub fn settle(&self, prober: &mut Client) {
        // Each answer is one turn of the front's event loop. A new connection needs one to be accepted, one to be
        // registered, and one to be read.
        for _ in 0..3 {
            prober.send(&self.refused_request());
            assert_eq!(prober.answer(), "PLAYER_TOKEN_INVALID");
        }
    }

    /// Waits for one connection for Python.
    pub fn handed_over(&self) -> HandedOver {
        assert!(is_readable(self.front.handed_over().signal().as_raw_fd(), LIMIT), "no connection");
        let mut connections = self.front.handed_over().take();
        assert_eq!(connections.len(), 1);
        connections.remove(0)
    }

    /// Waits for a connection for Python, and returns it if one comes within `wait`.
    pub fn handed_over_within(&self, wait: Duration) -> Option<HandedOver> {
        is_readable(self.front.handed_over().signal().as_raw_fd(), wait).then(|| self.handed_over())
    }

    pub fn has_handed_over(&self) -> bool {
        is_readable(self.front.handed_over().signal().as_raw_fd(), Duration::ZERO)
    }
}

/// Returns the operations on a shard, without namespaces.
pub fn operations(shard: Arc<Shard>, limits: Limits, code_bytes: usize) -> Operations {
    Operations {
        shard,
        hash: Arc::new(HashKey::new([9; 32])),
        namespaces: Arc::default(),
        limits: limits.buckets(),
        places: Places {
            regions: vec!["local".into(), "eu".into(), "us".into()],
            region_names: HashMap::from([("local".into(), "Local".into())]),
            addresses: PlayerAddresses {
                job_domain: None,
                advertised: "127.0.0.1".into(),
                node: "127.0.0.1".into(),
                has_certificate: false,
            },
        },
        answers: answers(code_bytes),
        lobby_answers: LobbyAnswers::default(),
    }
}

/// Returns a response for each refusal, with its code as the reason.
fn answers(code_bytes: usize) -> Answers {
    let template = |code: &str| {
        let padding = "_".repeat(code_bytes.saturating_sub(code.len()));
        let start = format!("HTTP/1.1 400 {code}{padding}\r\nx-ray-id: ");
        AnswerTemplate::new(vec![start.into_bytes(), b"\r\ncontent-length: 0\r\n\r\n".to_vec()])
    };
    let templates: HashMap<_, _> = Refusal::SLUGS.iter().map(|code| ((*code).to_owned(), template(code))).collect();
    Answers::new(templates).unwrap_or_else(|code| panic!("{code}"))
}

pub fn request_with(lobby_token: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    request_to("players/connected", lobby_token, body)
}

pub fn request_to(operation: &str, token: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!(
        "POST /matchmaker/{operation} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub fn is_readable(descriptor: i32, wait: Duration) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&mut poll, 1, wait.as_millis() as i32) == 1 }
}

/// Waits for a change that has no signal.
pub fn wait_until(mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < LIMIT, "it does not happen");
        std::thread::yield_now();
    }
}
