//! Order in which the outcomes of UDP routes are reported.

use std::sync::RwLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use super::*;
use crate::config::Config;
use crate::connection_limits::{ConnectionLimits, Maxima};
use crate::host_routes::HostRoutes;
use crate::tls::Certificates;
use crate::traffic::TrafficTable;
use crate::udp::SessionLimits;

const LONG: Duration = Duration::from_secs(20);

fn route_listeners() -> (RouteListeners, UnboundedReceiver<RouteOutcome>) {
    let config = Config::parse(r#"{"folder": "/nowhere", "source": "/nowhere/source.sock", "workers": 1}"#).unwrap();
    let bounds = SessionLimits::from(&config);
    let shared = Arc::new(SharedState {
        limits: Arc::new(ConnectionLimits::new(Maxima::new(&config.limits, false))),
        hosts: RwLock::new(HostRoutes::new(&config.backends)),
        certificates: Certificates::read(&config).unwrap(),
        traffic: TrafficTable::default(),
        players: Arc::default(),
        contact: Arc::default(),
        leave_signal: watch::Sender::new(false),
        timeouts: RwLock::new(config.timeouts),
        config,
    });
    let workers = ConnectionWorkers::start(&shared).unwrap();
    let datagrams = Arc::new(UdpThreads::start(1, bounds, &[], &Arc::default()).unwrap());
    let (sender, receiver) = unbounded_channel();
    (RouteListeners::new(shared, workers, datagrams, (false, false), sender), receiver)
}

fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[test]
fn udp_route_is_reported_after_its_thread_has_applied_it() {
    let (mut route_listeners, mut outcomes) = route_listeners();
    let (public, at) = socket();
    public.set_nonblocking(true).unwrap();
    // Keeps other programs from the port.
    route_listeners.inherited.datagrams.insert(at.port(), public);
    let (process, backend) = socket();
    let key = RouteKey { owner: "a".to_owned(), port_name: "game".to_owned() };
    let (protocol, host) = (Protocol::Udp, String::new());
    let route = Route {
        key: key.clone(),
        protocol,
        port: at.port(),
        host,
        is_tls: false,
        server_name: String::new(),
        sends_proxy_header: false,
        counts_sessions: false,
        requires_slot: false,
        backend: None,
    };
    route_listeners.put(route.clone());
    assert_eq!(outcomes.blocking_recv(), Some(RouteOutcome::Listening(key.clone(), at.port(), None)));

    let (resume, resumed) = channel::<()>();
    let (sender, receiver) = channel();
    route_listeners.datagrams.run_in_order(route_listeners.served[&key].live.number, move || {
        sender.send(()).unwrap();
        let _ = resumed.recv();
    });
    receiver.recv().unwrap();
    route_listeners.put(Route { backend: Some(backend), ..route });
    route_listeners.report_outcomes();
    assert!(outcomes.try_recv().is_err(), "reported while datagrams are still dropped");
    resume.send(()).unwrap();
    for _ in 0..2 {
        assert_eq!(outcomes.blocking_recv(), Some(RouteOutcome::Listening(key.clone(), at.port(), Some(backend))));
    }
    let (player, _) = socket();
    player.send_to(b"first", at).unwrap();
    assert_eq!(process.recv(&mut [0; 8]).unwrap(), 5);
}
