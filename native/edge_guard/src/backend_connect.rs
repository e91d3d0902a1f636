//! Ways on to back ends: a connection within its time, and patience where there is no room just now.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

/// Between tries when there is no descriptor.
const PAUSE: Duration = Duration::from_millis(50);

/// Between tries when the queue of a unix socket is full: there the system says so at once, where with TCP it waits.
const QUEUE_RETRY_DELAY: Duration = Duration::from_millis(1);

/// Connects to a port; small writes go at once.
///
/// A player who was let in with the last descriptor waits for the next one: somebody may leave.
///
/// # Errors
/// The back end does not take it; `TimedOut` when it does not within its time.
pub async fn connect(backend: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let stream = with_retries(within, || TcpStream::connect(backend)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to a unix socket, as patiently.
///
/// # Errors
/// The same.
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
                    Some(libc::EAGAIN) => sleep(QUEUE_RETRY_DELAY).await,
                    _ => return Err(error),
                },
                result => return result,
            }
        }
    };
    timeout(within, connecting).await.map_err(|_| io::ErrorKind::TimedOut)?
}
