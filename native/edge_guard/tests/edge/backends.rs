//! Small game servers, and players for them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::wait::{LONG, wait_for};

/// Starts a TCP echo server, which closes its side after the player.
pub fn tcp_echo() -> SocketAddr {
    tcp(|mut stream| {
        let mut buffer = [0; 65_536];
        while let Ok(count) = stream.read(&mut buffer) {
            if count == 0 || stream.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    })
}

/// Starts a TCP server that sends its name to each connection and keeps the connection open.
pub fn tcp_named(name: &'static str) -> SocketAddr {
    tcp(move |mut stream| {
        let _ = stream.write_all(name.as_bytes());
        let _ = stream.read(&mut [0; 1]);
    })
}

pub fn tcp(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    // `TcpListener::bind` has a queue of 128. A burst of connections overflows it, and the kernel repeats a lost one after 1 s.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(4_096).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), serve.clone());
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

pub fn at_socket(path: &Path, act: impl Fn(UnixStream) + Clone + Send + 'static) {
    serve(UnixListener::bind(path).unwrap(), act);
}

pub fn serve(listener: UnixListener, act: impl Fn(UnixStream) + Clone + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, act) = (stream.unwrap(), act.clone());
            thread::spawn(move || act(stream));
        }
    });
}

pub fn udp_echo() -> SocketAddr {
    udp(|datagram, _| Some(datagram.to_vec()))
}

/// Starts an echo server with the same port for TCP and UDP.
pub fn tcp_and_udp_echo() -> SocketAddr {
    wait_for("a port that is free for both", || {
        let address = tcp_echo();
        serve_datagrams(UdpSocket::bind(address).ok()?, |datagram, _| Some(datagram.to_vec()));
        Some(address)
    })
}

pub fn udp(answer: impl Fn(&[u8], SocketAddr) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
    serve_datagrams(UdpSocket::bind("127.0.0.1:0").unwrap(), answer)
}

fn serve_datagrams(
    socket: UdpSocket,
    answer: impl Fn(&[u8], SocketAddr) -> Option<Vec<u8>> + Send + 'static,
) -> SocketAddr {
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        // An earlier reply to a closed port fails the next call.
        loop {
            if let Ok((length, client)) = socket.recv_from(&mut buffer)
                && let Some(answer) = answer(&buffer[..length], client)
            {
                let _ = socket.send_to(&answer, client);
            }
        }
    });
    address
}

#[track_caller]
pub fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub fn connect_datagram(port: u16) -> UdpSocket {
    speak_from("127.0.0.1", port)
}

pub fn speak_from(address: &str, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

#[track_caller]
pub fn echo(stream: &mut (impl Read + Write), text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), text);
}

#[track_caller]
pub fn echo_datagram(socket: &UdpSocket, text: &str) {
    socket.send(text.as_bytes()).unwrap();
    let mut answer = [0; 2_048];
    let length = socket.recv(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer[..length]), text);
}

/// Sends a datagram again and again until a reply arrives, because datagrams can be lost.
#[track_caller]
pub fn ask_datagram(socket: &UdpSocket, text: &str) -> String {
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut answer = [0; 2_048];
    wait_for("an answer", || {
        socket.send(text.as_bytes()).unwrap();
        let length = socket.recv(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer[..length]).into_owned())
    })
}

pub fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_))
}
