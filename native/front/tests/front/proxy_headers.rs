//! PROXY headers of version 2.

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

pub fn proxy_header(client: [u8; 4]) -> Vec<u8> {
    [SIGNATURE, b"\x21\x11\0\x0c", &client, b"\x7f\0\0\x01\0\x01\0\x02"].concat()
}

/// Returns the header of a connection of the proxy itself.
pub fn local_header() -> Vec<u8> {
    [SIGNATURE, b"\x20\0\0\0"].concat()
}
