//! Relays: order, completeness, half closes, idle timeouts.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

async fn carry(is_spliced: bool, length: usize) -> (Arc<ThreadCounters>, Arc<Traffic>) {
    let (mut player, mut front) = pair().await;
    let (mut to_client, mut server) = pair().await;
    let (thread, owner) = (Arc::new(ThreadCounters::default()), Arc::new(Traffic::default()));
    let counted = (thread.clone(), owner.clone());
    let relay = tokio::spawn(async move {
        let counters = RelayCounters { thread: &counted.0, owner: &counted.1 };
        let idle = RelayLimits::idle(Duration::from_secs(60));
        if is_spliced {
            relay_sockets(&mut front, &mut to_client, idle, counters).await
        } else {
            relay_streams(&mut front, &mut to_client, idle, counters).await
        }
    });
    let sent = pattern(length);
    let writing = tokio::spawn(async move {
        player.write_all(&pattern(length)).await.unwrap();
        player.shutdown().await.unwrap();
        let mut answer = Vec::new();
        player.read_to_end(&mut answer).await.unwrap();
        answer
    });
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert!(received == sent, "altered on the way there");
    // The player has closed its half. The other half still works.
    server.write_all(&received).await.unwrap();
    server.shutdown().await.unwrap();
    assert!(writing.await.unwrap() == sent, "altered on the way back");
    relay.await.unwrap().unwrap();
    (thread, owner)
}

#[tokio::test]
async fn splice_relays_ten_megabytes_and_half_close() {
    let (thread, owner) = carry(true, 10_000_000).await;
    for direction in [Direction::In, Direction::Out] {
        assert_eq!(thread.stream_bytes.with_label(direction).value(), 10_000_000);
        assert_eq!(owner.bytes(direction), 10_000_000);
    }
}

#[tokio::test]
async fn buffer_relays_ten_megabytes_and_half_close() {
    let (thread, owner) = carry(false, 10_000_000).await;
    assert_eq!(thread.stream_bytes.with_label(Direction::Out).value(), 10_000_000);
    assert_eq!(owner.bytes(Direction::Out), 10_000_000);
}

#[tokio::test]
async fn empty_stream_relays_only_its_end() {
    carry(true, 0).await;
    carry(false, 0).await;
}

#[tokio::test(start_paused = true)]
async fn idle_relay_ends_and_active_relay_stays() {
    let (player, mut front) = tokio::io::duplex(64);
    let (mut to_client, server) = tokio::io::duplex(64);
    let (mut player, mut server) = (player, server);
    let relay = tokio::spawn(async move {
        let (thread, owner) = (ThreadCounters::default(), Traffic::default());
        let counters = RelayCounters { thread: &thread, owner: &owner };
        relay_streams(&mut front, &mut to_client, RelayLimits::idle(Duration::from_secs(60)), counters).await
    });
    let started = tokio::time::Instant::now();
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_secs(40)).await;
        player.write_all(b"still here").await.unwrap();
        server.read_exact(&mut [0; 10]).await.unwrap();
    }
    assert!(!relay.is_finished());
    assert_eq!(relay.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(started.elapsed() >= Duration::from_secs(4 * 40 + 60), "ended while it was in use");
}
