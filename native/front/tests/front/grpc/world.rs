//! A running front that serves gRPC, and two gRPC servers in place of the Python processes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use hosting_front::{
    BodyBudget, ConnectionBudget, GrpcLimits, GrpcOptions, Health, MethodOptions, PassingOptions, Plane,
};
use hosting_shard::Shard;

use crate::grpc::client::{Client, OpenCall};
use crate::grpc::python::{Python, ReceivedCall};
use crate::shard;
use crate::world::Setup;

/// A message with its prefix.
pub const MESSAGE: &[u8] = &[0, 0, 0, 0, 2, 7, 8];
pub const OK: &[(&str, &str)] = &[("grpc-status", "0")];
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

/// The fields are dropped in this order.
pub struct World {
    http: crate::world::World,
    pub address: SocketAddr,
    pub data: Python,
    pub control: Option<Python>,
    pub budget: Arc<ConnectionBudget>,
}

/// Gives access to the front, its lobby and its budgets.
impl Deref for World {
    type Target = crate::world::World;

    fn deref(&self) -> &Self::Target {
        &self.http
    }
}

impl World {
    pub fn new() -> World {
        World::with(Setup::default())
    }

    /// Returns a front with its first client.
    pub fn connected() -> (World, Client) {
        World::connected_with(Setup::default())
    }

    pub fn connected_with(setup: Setup) -> (World, Client) {
        let world = World::with(setup);
        let client = Client::connect(world.address);
        (world, client)
    }

    /// Starts a call of the data plane. Returns it with the call that Python gets.
    pub fn start(&self, client: &mut Client, metadata: &[(&str, &str)]) -> (OpenCall, ReceivedCall) {
        (client.start(DATA_METHOD, metadata, MESSAGE), self.data.next_call())
    }

    pub fn with(setup: Setup) -> World {
        World::on_shard(setup, shard::writing_shard)
    }

    /// Starts a front with a stepped shard, for `commit`.
    pub fn stepped() -> World {
        let world = World::on_shard(Setup::default(), |folder| shard::stepped_shard(folder).0);
        world.commit();
        world
    }

    /// Starts a front with budgets of its own for the connections, messages and responses of gRPC.
    fn on_shard(setup: Setup, new_shard: impl FnOnce(&Path) -> Arc<Shard>) -> World {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let budget = Arc::new(ConnectionBudget::new(setup.budget));
        let (bodies, answers) = (setup.bodies_bytes_max, setup.answers_bytes_max);
        let (idle, has_control, of_grpc) = (setup.grpc_idle, setup.has_grpc_control, budget.clone());
        let mut servers = None;
        let options = |folder: &Path, passing: &mut PassingOptions| {
            passing.bodies = BodyBudget::new(bodies, MESSAGE_BYTES_MAX);
            passing.answers = BodyBudget::new(answers, 1_000);
            let (data_socket, control_socket) = (folder.join("grpc_data.sock"), folder.join("grpc_control.sock"));
            servers = Some((Python::start(&data_socket), has_control.then(|| Python::start(&control_socket))));
            Some(GrpcOptions {
                listener,
                budget: of_grpc,
                methods: methods(),
                data_socket,
                control_socket,
                bodies: passing.bodies.clone(),
                health: Arc::new(Health::new(methods().iter().map(|method| method.path.as_str()))),
                limits: GrpcLimits { streams_per_connection: 1_000, metadata_bytes: METADATA_BYTES_MAX, idle },
            })
        };
        let http = crate::world::World::start(setup, |folder| (new_shard(folder), ()), options).0;
        let (data, control) = servers.unwrap();
        World { http, address, data, control, budget }
    }

    pub fn control(&self) -> &Python {
        self.control.as_ref().unwrap()
    }

    /// Makes a call that Python answers.
    pub fn serve(&self, client: &mut Client, path: &str, metadata: &[(&str, &str)]) {
        let call = client.start(path, metadata, MESSAGE);
        let python = if path == CONTROL_METHOD { self.control() } else { &self.data };
        python.next_call().answer(MESSAGE, OK);
        let answer = client.finish(call);
        assert_eq!((answer.status(), &*answer.data), ("0", MESSAGE));
    }

    /// Returns operation, code and number of the counted calls since the last call.
    pub fn counts(&self) -> Vec<(String, String, u64)> {
        self.counted(self.front.take_grpc_measurements())
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
        method(DATA_METHOD, "live", Plane::Data, false, false),
        method(STREAM_METHOD, "live", Plane::Data, false, true),
        method(TOKEN_STREAM_METHOD, "get_game", Plane::Data, true, true),
        method(CONTROL_METHOD, "get_game", Plane::Control, true, false),
    ]
}
