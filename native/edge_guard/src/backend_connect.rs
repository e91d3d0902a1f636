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

/// Connects to a game server, with the timeout `within`. Retries while the system is out of file descriptors.
pub async fn connect(backend: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let stream = with_retries(within, || TcpStream::connect(backend)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to the service, with the timeout `within`. Also retries while no process has the socket, because the
/// service restarts.
pub async fn connect_unix(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let is_restarting =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
    let mut restart = None;
    let connecting = async {
        loop {
            let result = with_retries(within, || UnixStream::connect(path)).await;
            match result {
                Err(error) if is_restarting(&error) => restart = Some(error),
                result => return result,
            }
            sleep(PAUSE).await;
        }
    };
    match timeout(within, connecting).await {
        Ok(result) => result,
        Err(_) => Err(restart.unwrap_or(io::ErrorKind::TimedOut.into())),
    }
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
