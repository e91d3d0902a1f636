//! Connections to backends, with a timeout and with retries while the system is out of file descriptors.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

const PAUSE: Duration = Duration::from_millis(50);

/// Delay before a retry if the accept queue of a Unix socket is full.
const QUEUE_RETRY_DELAY: Duration = Duration::from_millis(1);

/// Connects to a backend, with the timeout `within`. Retries while the system is out of file descriptors.
pub async fn connect(backend: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let stream = with_retries(within, || TcpStream::connect(backend)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub async fn connect_unix(path: &Path, within: Duration) -> io::Result<UnixStream> {
    with_retries(within, || UnixStream::connect(path)).await
}

async fn with_retries<S, F>(within: Duration, connect: impl Fn() -> F) -> io::Result<S>
where
    F: Future<Output = io::Result<S>>,
{
    let connecting = async {
        loop {
            match connect().await {
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) => sleep(PAUSE).await,
                    // Only for Unix sockets. For TCP, the kernel waits.
                    Some(libc::EAGAIN) => sleep(QUEUE_RETRY_DELAY).await,
                    _ => return Err(error),
                },
                result => return result,
            }
        }
    };
    timeout(within, connecting).await.map_err(|_| io::ErrorKind::TimedOut)?
}
