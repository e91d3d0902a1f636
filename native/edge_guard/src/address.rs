//! Addresses of backends.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Largest path length of a Unix socket in the kernel.
const SOCKET_PATH_MAX: usize = 107;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendAddress {
    Port(SocketAddr),
    /// Unix stream socket (`unix:/absolute/path`).
    Socket(Arc<Path>),
}

impl FromStr for BackendAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') && path.len() <= SOCKET_PATH_MAX => {
                Ok(Self::Socket(Arc::from(Path::new(path))))
            }
            Some(_) => Err(()),
            None => text.parse().map(Self::Port).map_err(|_| ()),
        }
    }
}

impl From<SocketAddr> for BackendAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Port(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_address_is_a_port_or_an_absolute_socket_path() {
        assert_eq!("127.0.0.1:80".parse(), Ok(BackendAddress::Port(SocketAddr::from(([127, 0, 0, 1], 80)))));
        assert_eq!("unix:/run/api.sock".parse(), Ok(BackendAddress::Socket(Arc::from(Path::new("/run/api.sock")))));
        for wrong in ["127.0.0.1", "unix:", "unix:run/api.sock", "/run/api.sock"] {
            assert_eq!(wrong.parse::<BackendAddress>(), Err(()), "{wrong}");
        }
        assert!(format!("unix:/{}", "x".repeat(106)).parse::<BackendAddress>().is_ok());
        assert!(
            format!("unix:/{}", "x".repeat(107)).parse::<BackendAddress>().is_err(),
            "the system takes no longer path"
        );
    }
}
