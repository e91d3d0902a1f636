//! A running front with a lobby.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::num::NonZero;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hosting_core::{Attached, HashKey};
use hosting_front::{
    BodyBudget, ByPlane, ClientAddresses, ConnectionBudget, Cors, FailedAuthentications, Front, FrontOptions,
    GrpcOptions, Measurements, OperationCounts, PassReason, PassingOptions, Plane, RequestLimits, RouteOptions, Routes,
    ServerCertificate, Timeouts, code_names,
};
use hosting_matchmaker::{
    Buckets, ClientLimits, LobbyAnswers, Matchmaker, Namespaces, Places, PlayerAddresses, Region, Regions,
};
use hosting_shard::Shard;
use ipnet::IpNet;
use tokio::net::TcpSocket;
use tokio::runtime;
use uuid::Uuid;

use crate::client::Client;
use crate::namespace::namespace;
use crate::python::{Python, Request};
use crate::shard::{self, Clock};

/// Time in which everything that a test waits for must happen.
pub const LIMIT: Duration = Duration::from_secs(30);
/// A timeout that no test reaches.
pub const NEVER: Duration = Duration::from_secs(600);
/// A timeout for which a test waits.
pub const SHORT: Duration = Duration::from_millis(50);

pub const TIMEOUTS: Timeouts = Timeouts {
    receive: NEVER,
    keep_alive: NEVER,
    slow_reader: NEVER,
    parked: NEVER,
    idle_grace: SHORT,
    unverified_stream: NEVER,
};
pub const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
pub const URL_BYTES_MAX: usize = 2 * 1024;
pub const HEADERS_BYTES_MAX: usize = 16 * 1024;
/// For requests without an operation.
pub const BODY_BYTES_MAX: usize = 100_000;
/// For `POST /cloud/files`.
pub const FILE_BYTES_MAX: usize = 1 << 20;

pub struct Setup {
    /// Whether the front has small send buffers.
    pub has_small_buffers: bool,
    pub threads: usize,
    pub budget: usize,
    pub proxies: Vec<IpNet>,
    pub has_proxy_headers: bool,
    pub timeouts: Timeouts,
    pub limits: Limits,
    /// Name of the lobby's region, which each response to a join has.
    pub region_name: String,
    /// Whether the world keeps the listener, as a supervisor does.
    pub is_listener_shared: bool,
    pub answer_timeout: Duration,
    pub cors_origins: Vec<String>,
    /// Budgets of the bytes of bodies, of unread answers and of parked requests.
    pub bodies_bytes_max: usize,
    pub answers_bytes_max: usize,
    pub parked_bytes_max: usize,
    pub requests_max: ByPlane<usize>,
    /// Burst of failed authentications, which does not refill during a test.
    pub failures: u32,
    pub certificate: Option<Arc<ServerCertificate>>,
    /// Timeout of a gRPC connection without a call.
    pub grpc_idle: Duration,
    /// Whether the control plane serves gRPC.
    pub has_grpc_control: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            has_small_buffers: false,
            threads: 1,
            budget: 100,
            proxies: Vec::new(),
            has_proxy_headers: false,
            timeouts: TIMEOUTS,
            limits: Limits::default(),
            region_name: "Local".into(),
            is_listener_shared: false,
            answer_timeout: NEVER,
            cors_origins: vec!["https://console.example".into()],
            bodies_bytes_max: 64 << 20,
            answers_bytes_max: 64 << 20,
            parked_bytes_max: 64 << 20,
            requests_max: ByPlane { data: 4_096, control: 512 },
            failures: 1_000,
            certificate: None,
            grpc_idle: NEVER,
            has_grpc_control: true,
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
        Limits::of(1_000)
    }
}

impl Limits {
    pub fn of(burst: u32) -> Limits {
        Limits { tokens: burst, token_addresses: burst, client_addresses: burst, groups: burst }
    }

    fn buckets(self) -> ClientLimits {
        let buckets = |burst| Arc::new(Buckets::new(1e-3, burst, 1_000));
        ClientLimits {
            tokens: buckets(self.tokens),
            token_addresses: buckets(self.token_addresses),
            client_addresses: buckets(self.client_addresses),
            groups: buckets(self.groups),
            lobbies: buckets(u32::MAX),
        }
    }
}

/// The fields are dropped in this order.
pub struct World {
    pub front: Front,
    /// Process of the data plane.
    pub python: Python,
    pub control: Python,
    pub shard: Arc<Shard>,
    pub budget: Arc<ConnectionBudget>,
    pub lobby: Attached,
    pub limits: ClientLimits,
    parked: Arc<AtomicUsize>,
    pub parked_bytes: Arc<BodyBudget>,
    pub bodies: Arc<BodyBudget>,
    pub unread_answers: Arc<BodyBudget>,
    pub address: SocketAddr,
    pub shared_listener: Option<TcpListener>,
    /// Names of the operations.
    slugs: Vec<String>,
    /// Socket of edge-guard.
    pub edge_socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts a front with a shard that makes its events durable at once.
    pub fn new() -> World {
        World::with(Setup::default())
    }

    /// Returns a front with its first client.
    pub fn connected() -> (World, Client) {
        let world = World::new();
        let client = world.connect();
        (world, client)
    }

    pub fn with(setup: Setup) -> World {
        World::start(setup, |folder| (shard::writing_shard(folder), ()), |_, _| None).0
    }

    /// Starts a front with a stepped shard, for [`World::commit`].
    pub fn stepped() -> (World, Arc<Clock>) {
        let (world, clock) = World::start(Setup::default(), shard::stepped_shard, |_, _| None);
        world.commit();
        (world, clock)
    }

    /// Starts a front, with gRPC if there are options for it.
    pub fn start<T>(
        setup: Setup,
        new_shard: impl FnOnce(&Path) -> (Arc<Shard>, T),
        grpc: impl FnOnce(&Path, &mut PassingOptions) -> Option<GrpcOptions>,
    ) -> (World, T) {
        let folder = tempfile::tempdir().unwrap();
        let (shard, clock) = new_shard(folder.path());
        let listener = listen(setup.has_small_buffers);
        let address = listener.local_addr().unwrap();
        let shared_listener = setup.is_listener_shared.then(|| listener.try_clone().unwrap());
        let edge_socket = folder.path().join("edge.sock");
        let budget = Arc::new(ConnectionBudget::new(setup.budget));
        let matchmaker = matchmaker(shard.clone(), setup.limits, &setup.region_name);
        let limits = matchmaker.limits.clone();
        let mut passing = passing(folder.path(), &setup);
        let grpc = grpc(folder.path(), &mut passing);
        let slugs = passing.routes.slugs().to_vec();
        let (parked, parked_bytes) = (passing.parked.clone(), passing.parked_bytes.clone());
        let (bodies, unread_answers) = (passing.bodies.clone(), passing.answers.clone());
        let (python, control) = (Python::start(&passing.data_socket), Python::start(&passing.control_socket));
        let options = FrontOptions {
            threads: NonZero::new(setup.threads).unwrap(),
            listener,
            edge_listener: Some(UnixListener::bind(&edge_socket).unwrap()),
            budget: budget.clone(),
            matchmaker: Arc::new(matchmaker),
            duration_bounds: vec![Duration::from_secs(1)],
            records_per_second: 100,
            addresses: ClientAddresses {
                proxies: setup.proxies,
                has_proxy_headers: setup.has_proxy_headers,
                ..ClientAddresses::default()
            },
            timeouts: setup.timeouts,
            passing,
            grpc,
            certificate: setup.certificate,
        };
        let lobby = shard::new_lobby(&shard, 1);
        let front = Front::start(options).unwrap();
        let world = World {
            front,
            python,
            control,
            shard,
            budget,
            lobby,
            limits,
            parked,
            parked_bytes,
            bodies,
            unread_answers,
            address,
            edge_socket,
            shared_listener,
            slugs,
            _folder: folder,
        };
        (world, clock)
    }

    pub fn commit(&self) {
        shard::commit(&self.shard);
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Sends a request that a process gets. Returns its client, and the request for the answer by the test.
    pub fn ask_python(&self, python: &Python, request: &[u8]) -> (Client, Request) {
        python.reply_by_test();
        let mut client = self.connect();
        client.send(request);
        (client, python.request())
    }

    pub fn new_player(&self) -> String {
        shard::new_player(&self.shard, self.lobby.lobby)
    }

    /// Returns why requests were passed on since the last call.
    pub fn pass_reasons(&self) -> Vec<&'static str> {
        let measured = self.front.take_measurements().1;
        let times = |(reason, count): (PassReason, u64)| std::iter::repeat_n(reason.slug(), count as usize);
        let counts = measured.operations.iter().flat_map(|counts| PassReason::all().zip(counts.passed));
        counts.flat_map(times).collect()
    }

    /// Returns the number of parked requests.
    pub fn parked(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
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

    pub fn join(&self, token: &str) -> Vec<u8> {
        let lobby_id = Uuid::from_bytes(self.lobby.lobby.0);
        request_to("lobbies/join", token, format!(r#"{{"lobby_id":"{lobby_id}"}}"#))
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
            assert_eq!(prober.ask(self.refused_request()).code, "PLAYER_TOKEN_INVALID");
        }
    }

    /// Returns the number of answers by operation and code since the last call.
    pub fn counts(&self) -> Vec<(String, String, u64)> {
        self.counted(self.front.take_measurements().1)
    }

    /// Returns the measured numbers of answers by operation and code.
    pub fn counted(&self, measured: Measurements) -> Vec<(String, String, u64)> {
        let of_operation = |(slug, counts): (&String, OperationCounts)| {
            let slug = slug.clone();
            let counted = code_names().zip(counts.codes).filter(|(_, count)| *count > 0);
            counted.map(move |(code, count)| (slug.clone(), code.to_owned(), count)).collect::<Vec<_>>()
        };
        self.slugs.iter().zip(measured.operations).flat_map(of_operation).collect()
    }
}

fn listen(has_small_buffers: bool) -> TcpListener {
    let runtime = runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        if has_small_buffers {
            // Linux takes its minimum. The connections have it too.
            socket.set_send_buffer_size(1).unwrap();
        }
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        socket.listen(128).unwrap().into_std().unwrap()
    })
}

fn route(method: &str, template: &str, slug: &str, plane: Plane) -> RouteOptions {
    let body_bytes_max = match slug {
        "upload_file" => FILE_BYTES_MAX,
        // More than the rules decide.
        "heartbeat" => BODY_BYTES_MAX,
        _ => 64 * 1024,
    };
    let (method, template, slug) = (method.to_owned(), template.to_owned(), slug.to_owned());
    RouteOptions { needs_token: slug != "log_in", method, template, slug, plane, body_bytes_max }
}

fn routes() -> Routes {
    Routes::new([
        route("POST", "/matchmaker/players/connected", "connected", Plane::Data),
        route("POST", "/matchmaker/players/disconnected", "disconnected", Plane::Data),
        route("POST", "/matchmaker/lobbies/heartbeat", "heartbeat", Plane::Data),
        route("POST", "/matchmaker/lobbies/join", "join", Plane::Data),
        route("POST", "/matchmaker/lobbies/find", "find", Plane::Data),
        route("GET", "/matchmaker/regions", "regions", Plane::Data),
        route("GET", "/events/live", "live", Plane::Data),
        route("GET", "/cloud/games/{game_id}", "get_game", Plane::Control),
        route("POST", "/cloud/games/{game_id}", "set_game", Plane::Control),
        route("POST", "/cloud/files", "upload_file", Plane::Data),
        route("POST", "/cloud/log-in", "log_in", Plane::Data),
    ])
    .unwrap()
}

pub fn passing(folder: &Path, setup: &Setup) -> PassingOptions {
    PassingOptions {
        routes: routes(),
        cors: Cors::new(setup.cors_origins.clone()),
        data_socket: folder.join("data.sock"),
        control_socket: folder.join("control.sock"),
        answer_timeout: setup.answer_timeout,
        requests_max: setup.requests_max,
        limits: RequestLimits {
            url_bytes_max: URL_BYTES_MAX,
            headers_bytes_max: HEADERS_BYTES_MAX,
            body_bytes_max: BODY_BYTES_MAX,
        },
        bodies: BodyBudget::new(setup.bodies_bytes_max, FILE_BYTES_MAX),
        answers: BodyBudget::new(setup.answers_bytes_max, 1),
        failed_authentications: FailedAuthentications::new(Arc::new(Buckets::new(1e-3, setup.failures, 1_000))),
        parked: Arc::default(),
        parked_bytes: BodyBudget::without_reserve(setup.parked_bytes_max),
    }
}

/// Returns the rules on a shard, with one namespace.
pub fn matchmaker(shard: Arc<Shard>, limits: Limits, region_name: &str) -> Matchmaker {
    let region = Region {
        id: "local".into(),
        provider_display_name: region_name.into(),
        display_name: region_name.into(),
        coordinates: (0.0, 0.0),
    };
    let namespaces = Namespaces::default();
    namespaces.put(Arc::new(namespace()));
    Matchmaker {
        shard,
        hash: Arc::new(HashKey::new([9; 32])),
        namespaces: Arc::new(namespaces),
        limits: limits.buckets(),
        places: Places {
            regions: Regions::new(vec![region]),
            addresses: PlayerAddresses {
                job_domain: None,
                advertised: "127.0.0.1".into(),
                node: "127.0.0.1".into(),
                has_certificate: false,
            },
        },
        lobby_answers: LobbyAnswers::default(),
    }
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

pub fn find(token: &str, mode: &str) -> Vec<u8> {
    request_to("lobbies/find", token, format!(r#"{{"game_modes":["{mode}"]}}"#))
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
