//! A client that reads at a given rate.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tokio::net::TcpSocket;
use tokio::runtime;

/// Returns a connection with a small buffer: the kernel acknowledges only a few hundred bytes more than the client reads.
pub fn connect(address: SocketAddr) -> TcpStream {
    // Linux takes its minimum.
    connect_with_buffer(address, 1)
}

pub fn connect_with_buffer(address: SocketAddr, bytes: u32) -> TcpStream {
    let runtime = runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let connecting = async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(bytes).unwrap();
        socket.connect(address).await.unwrap().into_std().unwrap()
    };
    let stream = runtime.block_on(connecting);
    stream.set_nonblocking(false).unwrap();
    stream
}

/// Reads at a rate, for a time or while the front has the connection. Returns whether the front still has it.
pub fn read(stream: &mut TcpStream, bytes_per_second: usize, time: Duration, is_open: impl Fn() -> bool) -> bool {
    let (started, mut buffer, mut read) = (Instant::now(), [0; 256], 0);
    while is_open() && started.elapsed() < time {
        let due = started.elapsed().as_micros() as usize * bytes_per_second / 1_000_000 - read;
        match due.min(buffer.len()) {
            // Leaves the core to other tests. The rate does not depend on the length of this pause.
            0 => std::thread::park_timeout(Duration::from_millis(2)),
            due => read += stream.read(&mut buffer[..due]).unwrap(),
        }
    }
    is_open()
}
