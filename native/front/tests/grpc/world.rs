//! A running front with a lobby, and its two Python processes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hosting_core::{Attached, HashKey};
use hosting_front::{
    BodyBudget, ByPlane, ClientAddresses, ConnectionBudget, Cors, FailedAuthentications, Front, FrontOptions,
    GrpcLimits, GrpcOptions, Health, MethodOptions, PassingOptions, Plane, RequestLimits, RouteOptions, Routes,
    ServerCertificate, Timeouts, code_names,
};
use hosting_matchmaker::{
    Buckets, ClientLimits, LobbyAnswers, Matchmaker, Namespaces, Places, PlayerAddresses, Region, Regions,
};
use hosting_shard::Shard;
use ipnet::IpNet;

use crate::namespace::namespace;
use crate::python::Python;
use crate::shard;

/// Time in which everything that a test waits for must happen.
pub const LIMIT: Duration = Duration::from_secs(30);
/// A timeout that no test reaches.
pub const NEVER: Duration = Duration::from_secs(600);
/// A timeout for which a test waits.
pub const SHORT: Duration = Duration::from_millis(50);
pub const MESSAGE_BYTES_MAX: usize = 100_000;
pub const METADATA_BYTES_MAX: usize = 2_000;
/// Method of the control plane, which needs a token.
pub const CONTROL_METHOD: &str = "/test.Control/Get";
/// Method of the data plane.
pub const DATA_METHOD: &str = "/test.Data/List";
pub const STREAM_METHOD: &str = "/test.Data/Stream";
pub const TOKEN_STREAM_METHOD: &str = "/test.Data/TokenStream";
pub const CONNECTED: &str = "/hosting.v1.Matchmaker/PlayerConnected";
pub const JOIN: &str = "/hosting.v1.Matchmaker/JoinLobby";
pub const FIND: &str = "/hosting.v1.Matchmaker/FindLobby";
pub const HEARTBEAT: &str = "/hosting.v1.Matchmaker/Heartbeat";

/// No test sends requests over HTTP.
const NO_SOCKET: &str = "/nonexistent/http.sock";

pub struct Setup {
    pub threads: usize,
    pub connections: usize,
    pub proxies: Vec<IpNet>,
    pub has_proxy_headers: bool,
    pub receive: Duration,
    pub idle: Duration,
    pub slow_reader: Duration,
    pub streams_per_connection: u32,
    /// Bytes of messages in memory.
    pub bodies: usize,
    /// Bytes of responses in memory.
    pub answers: usize,
    /// Bytes of parked calls.
    pub parked: usize,
    pub has_control: bool,
    /// Calls to the data plane at a time.
    pub data_calls: usize,
    /// Burst of failed authentications, which does not refill during a test.
    pub failures: u32,
    pub certificate: Option<Arc<ServerCertificate>>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            threads: 1,
            connections: 100,
            proxies: Vec::new(),
            has_proxy_headers: false,
            receive: NEVER,
            idle: NEVER,
            slow_reader: NEVER,
            streams_per_connection: 1_000,
            bodies: 100_000_000,
            answers: 100_000_000,
            parked: 100_000_000,
            has_control: true,
            data_calls: 4_096,
            failures: 1_000,
            certificate: None,
        }
    }
}

/// The fields are dropped in this order.
pub struct World {
    pub front: Front,
    pub shard: Arc<Shard>,
    pub lobby: Attached,
    pub address: SocketAddr,
    pub data: Python,
    pub control: Option<Python>,
    pub budget: Arc<ConnectionBudget>,
    pub bodies: Arc<BodyBudget>,
    pub unread_answers: Arc<BodyBudget>,
    pub parked_bytes: Arc<BodyBudget>,
    pub slugs: Vec<String>,
    _folder: tempfile::TempDir,
}

fn passing(
    setup: &Setup,
    bodies: Arc<BodyBudget>,
    answers: Arc<BodyBudget>,
    parked_bytes: Arc<BodyBudget>,
) -> PassingOptions {
    PassingOptions {
        routes: Routes::new(routes()).unwrap(),
        cors: Cors::new(Vec::new()),
        data_socket: NO_SOCKET.into(),
        control_socket: NO_SOCKET.into(),
        answer_timeout: NEVER,
        requests_max: ByPlane { data: setup.data_calls, control: 512 },
        limits: RequestLimits { url_bytes_max: 1_000, headers_bytes_max: 1_000, body_bytes_max: 1_000 },
        bodies,
        answers,
        failed_authentications: FailedAuthentications::new(Arc::new(Buckets::new(1e-3, setup.failures, 1_000))),
        parked: Arc::default(),
        parked_bytes,
    }
}

impl World {
    pub fn new() -> World {
        World::with(Setup::default())
    }

    pub fn with(setup: Setup) -> World {
        let folder = tempfile::tempdir().unwrap();
        let shard = shard::writing_shard(folder.path());
        let (data_socket, control_socket) = (folder.path().join("data.sock"), folder.path().join("control.sock"));
        let (data, control) = (Python::start(&data_socket), setup.has_control.then(|| Python::start(&control_socket)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let budget = Arc::new(ConnectionBudget::new(setup.connections));
        let bodies = BodyBudget::new(setup.bodies, MESSAGE_BYTES_MAX);
        let (unread_answers, parked_bytes) =
            (BodyBudget::new(setup.answers, 1_000), BodyBudget::without_reserve(setup.parked));
        let passing = passing(&setup, bodies.clone(), unread_answers.clone(), parked_bytes.clone());
        let options = FrontOptions {
            threads: NonZero::new(setup.threads).unwrap(),
            listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
            edge_listener: None,
            budget: Arc::new(ConnectionBudget::new(100)),
            matchmaker: Arc::new(matchmaker(shard.clone())),
            duration_bounds: vec![Duration::from_secs(1)],
            addresses: ClientAddresses {
                proxies: setup.proxies,
                has_proxy_headers: setup.has_proxy_headers,
                ..ClientAddresses::default()
            },
            timeouts: Timeouts { slow_reader: setup.slow_reader, parked: NEVER, ..Timeouts::new(setup.receive, NEVER) },
            passing,
            grpc: Some(GrpcOptions {
                listener,
                budget: budget.clone(),
                methods: methods(),
                data_socket,
                control_socket,
                bodies: bodies.clone(),
                health: Arc::new(Health::new(methods().iter().map(|method| method.path.as_str()))),
                limits: GrpcLimits {
                    streams_per_connection: setup.streams_per_connection,
                    metadata_bytes: METADATA_BYTES_MAX,
                    idle: setup.idle,
                },
            }),
            certificate: setup.certificate,
        };
        let (lobby, front) = (shard::new_lobby(&shard, 1), Front::start(options).unwrap());
        let names = front.take_measurements().0;
        let slugs = names.routes.slugs().to_vec();
        World {
            front,
            shard,
            lobby,
            address,
            budget,
            bodies,
            unread_answers,
            parked_bytes,
            data,
            control,
            slugs,
            _folder: folder,
        }
    }

    pub fn control(&self) -> &Python {
        self.control.as_ref().unwrap()
    }

    pub fn new_player(&self) -> String {
        shard::new_player(&self.shard, self.lobby.lobby)
    }

    /// Returns the number of reserved and of connected players of the lobby.
    pub fn players(&self) -> [u32; 2] {
        shard::players(&self.shard, self.lobby.lobby)
    }

    /// Returns operation, code and number of the counted calls since the last call.
    pub fn counts(&self) -> Vec<(String, String, u64)> {
        let measured = self.front.take_grpc_measurements();
        let of_operation = |(slug, counts): (&String, hosting_front::OperationCounts)| {
            let counted = code_names().zip(counts.codes).filter(|(_, count)| *count > 0);
            counted.map(|(code, count)| (slug.clone(), code.to_owned(), count)).collect::<Vec<_>>()
        };
        self.slugs.iter().zip(measured.operations).flat_map(of_operation).collect()
    }
}

fn matchmaker(shard: Arc<Shard>) -> Matchmaker {
    let buckets = || Arc::new(Buckets::new(1e-3, 1_000, 1_000));
    let namespaces = Namespaces::default();
    namespaces.put(Arc::new(namespace()));
    Matchmaker {
        shard,
        hash: Arc::new(HashKey::new([9; 32])),
        namespaces: Arc::new(namespaces),
        limits: ClientLimits {
            tokens: buckets(),
            token_addresses: buckets(),
            client_addresses: buckets(),
            groups: buckets(),
            lobbies: buckets(),
        },
        places: Places {
            regions: Regions::new(vec![Region {
                id: "local".into(),
                provider_display_name: "Local".into(),
                display_name: "Local".into(),
                coordinates: (0.0, 0.0),
            }]),
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

fn methods() -> Vec<MethodOptions> {
    let method = |path: &str, slug: &str, plane, needs_token, is_stream| MethodOptions {
        path: path.into(),
        slug: slug.into(),
        plane,
        message_bytes_max: MESSAGE_BYTES_MAX,
        needs_token,
        is_stream,
    };
    vec![
        method(CONNECTED, "connected", Plane::Data, true, false),
        method(HEARTBEAT, "heartbeat", Plane::Data, true, false),
        method(JOIN, "join", Plane::Data, false, false),
        method(FIND, "find", Plane::Data, false, false),
        method(DATA_METHOD, "search", Plane::Data, false, false),
        method(STREAM_METHOD, "search", Plane::Data, false, true),
        method(TOKEN_STREAM_METHOD, "get", Plane::Data, true, true),
        method(CONTROL_METHOD, "get", Plane::Control, true, false),
    ]
}

fn routes() -> Vec<RouteOptions> {
    let route = |slug: &str| RouteOptions {
        method: "GET".into(),
        template: format!("/{slug}"),
        slug: slug.into(),
        plane: Plane::Data,
        body_bytes_max: 1,
        needs_token: false,
    };
    ["search", "get"].map(route).into()
}

/// Waits for a change that has no signal.
pub fn wait_until(mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < LIMIT, "it does not happen");
        std::thread::yield_now();
    }
}
