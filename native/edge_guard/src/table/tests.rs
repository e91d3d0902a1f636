//! When a route of datagrams is told as leading somewhere.

use std::sync::RwLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use super::*;
use crate::config::Config;
use crate::datagram::Bounds;
use crate::hosts::Hosts;
use crate::limits::Limits;
use crate::tls::Certificates;

const LONG: Duration = Duration::from_secs(20);

fn table() -> (Table, UnboundedReceiver<Outcome>) {
    let config = Config::parse(r#"{"folder": "/nowhere", "source": "/nowhere/source.sock", "workers": 1}"#).unwrap();
    let bounds = Bounds::from(&config);
    let shared = Arc::new(Shared {
        limits: Arc::new(Limits::new(&config.limits)),
        hosts: RwLock::new(Hosts::new(&config.backends)),
        certificates: Certificates::read(&config).unwrap(),
        leaving: watch::Sender::new(false),
        times: RwLock::new(config.timeouts),
        config,
    });
    let workers = Workers::start(&shared).unwrap();
    let datagrams = Arc::new(Datagrams::start(1, bounds).unwrap());
    let (say, said) = unbounded_channel();
    (Table::new(shared, workers, datagrams, (false, false), say), said)
}

fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[test]
fn a_datagram_that_comes_after_it_was_told_is_led_however_late_its_thread_is() {
    let (mut table, mut told) = table();
    let (public, at) = socket();
    public.set_nonblocking(true).unwrap();
    // No other program can take the port meanwhile.
    table.inherited.datagrams.insert(at.port(), public);
    let (process, backend) = socket();
    let key = Key { owner: "a".to_owned(), port_name: "game".to_owned() };
    let (protocol, host) = (Protocol::Udp, String::new());
    let route = Route { key: key.clone(), protocol, port: at.port(), host, is_tls: false, backend: None };
    table.put(route.clone());
    assert_eq!(told.blocking_recv(), Some(Outcome::Listening(key.clone(), at.port(), None)));

    let (go_on, may_go_on) = channel::<()>();
    let (say, said) = channel();
    table.datagrams.then(table.served[&key].live.number, move || {
        say.send(()).unwrap();
        let _ = may_go_on.recv();
    });
    said.recv().unwrap();
    table.put(Route { backend: Some(backend), ..route });
    table.announce();
    assert!(told.try_recv().is_err(), "told while datagrams are still dropped");
    go_on.send(()).unwrap();
    for _ in 0..2 {
        assert_eq!(told.blocking_recv(), Some(Outcome::Listening(key.clone(), at.port(), Some(backend))));
    }
    let (player, _) = socket();
    player.send_to(b"first", at).unwrap();
    assert_eq!(process.recv(&mut [0; 8]).unwrap(), 5);
}
