//! Ways on to game servers: a connection within its time, and patience where descriptors ran out.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Between tries when there is no descriptor.
const PAUSE: Duration = Duration::from_millis(50);

/// Connects; small writes go at once.
///
/// A player who was let in with the last descriptor waits for the next one: somebody may leave.
///
/// # Errors
/// The back end does not take it; `TimedOut` when it does not within its time.
pub async fn connect(backend: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let connecting = async {
        loop {
            match TcpStream::connect(backend).await {
                Err(error) if is_shortage(&error) => sleep(PAUSE).await,
                result => return result,
            }
        }
    };
    let stream = timeout(within, connecting).await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
