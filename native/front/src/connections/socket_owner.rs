//! Answers of the kernel about a connection: the user of a socket (sock_diag(7)), and the machine of an address
//! (rtnetlink(7)).

use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{
    NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, TCP_LISTEN};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::protocols::{NETLINK_ROUTE, NETLINK_SOCK_DIAG};
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

const ANSWER_BYTES: usize = 4096;
/// For a socket that is named by its addresses alone.
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// Returns the user of the socket at `peer`, which is connected to `local`. Returns None if the kernel does not name one, for
/// example because the socket is closed or on another machine.
pub fn owner(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let (family, socket_id) =
        if peer.is_ipv4() { (AF_INET, SocketId::new_v4()) } else { (AF_INET6, SocketId::new_v6()) };
    let socket_id = SocketId {
        source_port: peer.port(),
        destination_port: local.port(),
        source_address: peer.ip(),
        destination_address: local.ip(),
        cookie: ANY_COOKIE,
        ..socket_id
    };
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id,
    };
    let answer = ask(NETLINK_SOCK_DIAG, SockDiagMessage::InetRequest(request))?;
    let SockDiagMessage::InetResponse(found) = answer else { return None };
    // A closed socket has neither an inode nor its user.
    (found.header.state != TCP_LISTEN && found.header.inode != 0).then_some(found.header.uid)
}

/// Returns whether the kernel has a route to another machine for an address.
pub fn is_on_other_machine(address: IpAddr) -> bool {
    let mut request = RouteMessage::default();
    request.header.address_family = address.into();
    request.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
    request.attributes = vec![RouteAttribute::Destination(address.into())];
    let answer = ask(NETLINK_ROUTE, RouteNetlinkMessage::GetRoute(request));
    matches!(answer, Some(RouteNetlinkMessage::NewRoute(route)) if route.header.kind == RouteType::Unicast)
}

fn ask<T: NetlinkSerializable + NetlinkDeserializable>(protocol: isize, question: T) -> Option<T> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let kernel = Socket::new(protocol).ok()?;
    kernel.set_non_blocking(true).ok()?;
    kernel.send_to(&bytes, &NetlinkAddress::new(0, 0), 0).ok()?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    kernel.recv(&mut answer, 0).ok()?;
    match NetlinkMessage::deserialize(&answer).ok()?.payload {
        NetlinkPayload::InnerMessage(answer) => Some(answer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::owner;

    #[test]
    fn owner_of_a_connection_is_the_user_of_its_process() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).expect("a free port");
            let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
            let (server, peer) = listener.accept().expect("connected");
            let local = server.local_addr().expect("connected");
            // SAFETY: the call has no arguments.
            assert_eq!(owner(peer, local), Some(unsafe { libc::geteuid() }));
            drop(client);
            drop(listener);
            assert_eq!(owner(peer, local), None);
        }
    }
}
