//! The beginning of a connection: the address of its client, and the choice of its reader.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hosting_matchmaker::ClientKey;
use tokio::io::AsyncRead;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::certificates::server_certificate::accept;
use crate::connections::client_address::{ClientAddresses, Peer, read_proxy_header};
use crate::connections::hyper_connection;
use crate::limits::connection_budget::{Admission, ConnectionBudget};
use crate::plain_requests::plain_connection::{self, HandedOver};
use crate::thread_context::ThreadContext;

/// Pause after a failed `accept`, for example because the process is out of file descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Counts a new connection. Returns None if it is over a limit or has ended.
pub fn admit(
    addresses: &ClientAddresses,
    budget: &Arc<ConnectionBudget>,
    stream: &TcpStream,
    peer: SocketAddr,
) -> Option<(Peer, Admission)> {
    let peer = addresses.peer(peer, stream.local_addr().ok()?);
    let client = match peer {
        Peer::Client(address) => Some(ClientKey::of(address)),
        Peer::Proxy(_) => None,
    };
    let _ = stream.set_nodelay(true);
    budget.admit(client).map(|admission| (peer, admission))
}

pub async fn serve(context: Rc<ThreadContext>, mut stream: TcpStream, peer: Peer, mut admission: Admission) {
    let receive = context.timeouts.receive;
    let Some(peer) = begin(&context.addresses, receive, &mut stream, peer, &mut admission).await else { return };
    if let Some(tls) = &context.tls {
        let serving = async {
            if let Some(stream) = accept(&tls.http, stream, receive).await {
                hyper_connection::serve(context.clone(), stream, peer, admission).await;
            }
        };
        return Box::pin(serving).await;
    }
    let (mut received, mut idle) = (Vec::new(), receive);
    loop {
        // Both are boxed, so that a connection has the memory of only one of them.
        let plain = Box::pin(plain_connection::serve(context.clone(), stream, peer, received, idle));
        let Some(HandedOver { stream: of_hyper, unread, reason }) = plain.await else { return };
        let others = Box::pin(hyper_connection::serve_until_parked(&context, of_hyper, unread, peer, reason));
        let Some(rest) = others.await else { return };
        ((stream, received), idle) = (rest, context.timeouts.keep_alive);
    }
}

/// Serves a connection of edge-guard, which names the client of each connection.
pub async fn serve_edge_guard(context: Rc<ThreadContext>, mut stream: UnixStream, mut admission: Admission) {
    let Some(named) = named_address(context.timeouts.receive, &mut stream).await else { return };
    let peer = context.addresses.edge_peer(named);
    if admission.introduce(peer) && admission.keep() {
        hyper_connection::serve(context, stream, peer, admission).await;
    }
}

/// Waits for the first byte of a client, after the PROXY header of a trusted proxy. Returns None if the connection must
/// close: nothing came in time, or a new connection has replaced this one.
pub async fn begin(
    addresses: &ClientAddresses,
    longest: Duration,
    stream: &mut TcpStream,
    peer: Peer,
    admission: &mut Admission,
) -> Option<Peer> {
    let replaced = admission.replaced();
    // Boxed, so that the connection does not keep the memory.
    let first_byte = Box::pin(async {
        let peer = named_peer(addresses, longest, stream, peer, admission).await?;
        // Tokio takes a new socket for readable until it has tried to read.
        let available = timeout(longest, stream.peek(&mut [0])).await.ok()?.ok()?;
        (available > 0).then_some(peer)
    });
    let peer = tokio::select! {
        biased;
        () = replaced => None,
        peer = first_byte => peer,
    };
    peer.filter(|_| admission.keep())
}

/// Reads the PROXY header of a trusted proxy, and counts the connection for the client that it names. Returns None if the
/// connection must close.
async fn named_peer(
    addresses: &ClientAddresses,
    longest: Duration,
    stream: &mut TcpStream,
    peer: Peer,
    admission: &mut Admission,
) -> Option<Peer> {
    let Peer::Proxy(proxy) = peer else { return Some(peer) };
    if !addresses.has_proxy_headers {
        return Some(peer);
    }
    let named = named_address(longest, stream).await?;
    let peer = addresses.named_peer(proxy, named);
    admission.introduce(peer).then_some(peer)
}

/// Reads the PROXY header of a connection. Returns None if the connection must close.
async fn named_address(longest: Duration, stream: &mut (impl AsyncRead + Unpin)) -> Option<Option<IpAddr>> {
    timeout(longest, read_proxy_header(stream)).await.ok()?.ok()
}
