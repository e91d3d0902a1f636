//! HTTP client for the Unix socket of a Python process.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Collected, Full};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};
use tower_service::Service;

use crate::passing::process_state::{PeerProcess, ProcessState, Stopped};
use crate::requests::routes::Plane;
use crate::responses::problems::Problem;

/// Time after which an idle connection is closed. It is shorter than that of the Python server, because a request on a
/// connection that closes has an unknown outcome.
const IDLE: Duration = Duration::from_secs(4);
const CONNECT_AGAIN: Duration = Duration::from_millis(5);
/// A response up to this size is received whole before it is passed on. A slow client then holds no connection to Python.
pub const WHOLE_BYTES: usize = 64 * 1024;

/// Runs tasks on the current thread.
#[derive(Clone, Copy)]
pub struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        spawn_local(task);
    }
}

/// Why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoResponse {
    NotSent,
    /// The request was sent, perhaps only in part.
    Lost,
    Late,
    /// The process is stopped.
    Stopped,
}

impl NoResponse {
    pub fn problem(self, plane: Plane, is_safe: bool) -> Problem {
        match self {
            NoResponse::Late => Problem::DeadlineExceeded,
            // A change may have happened.
            NoResponse::Lost if plane == Plane::Data && !is_safe => Problem::Internal,
            // The server is in this process, so it is stopped or overloaded.
            _ if plane == Plane::Data => Problem::Overloaded,
            NoResponse::Lost | NoResponse::Stopped if !is_safe => Problem::ControlPlaneUnavailableSent,
            _ => Problem::ControlPlaneUnavailable,
        }
    }
}

/// Client of one Python process. Connections are reused.
pub struct HttpUpstream {
    client: Client<UnixConnector, Full<Bytes>>,
    process: Rc<ProcessState>,
    answer_timeout: Duration,
}

impl HttpUpstream {
    /// Keeps at most `idle_max` idle connections. Python answers many requests in one turn of its event loop. With a lower
    /// limit, most of their connections would be closed, and opened again for the next requests.
    pub fn new(socket: PathBuf, answer_timeout: Duration, idle_max: usize) -> HttpUpstream {
        let process = ProcessState::new();
        let client = Client::builder(LocalExecutor)
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(idle_max)
            .build(UnixConnector { socket: Arc::new(socket), process: process.peer(), turn: Arc::default() });
        HttpUpstream { client, process, answer_timeout }
    }

    /// Sends a request to the process. The target needs a scheme and an authority, but both are ignored. A lost request is
    /// sent once more if it `is_safe` to execute it twice.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
        is_safe: bool,
    ) -> Result<Response<UpstreamContent>, NoResponse> {
        let receiving = async {
            let (parts, body) = self.send_again_if_lost(request, is_safe).await?.into_parts();
            let is_short = body.size_hint().exact().is_some_and(|bytes| bytes <= WHOLE_BYTES as u64);
            let content = if is_short {
                UpstreamContent::Whole(whole(body).await?)
            } else {
                UpstreamContent::Streamed(UpstreamBody::new(body, self.process.clone()))
            };
            Ok(Response::from_parts(parts, content))
        };
        self.in_time(receiving).await
    }

    /// Receives the rest of a body.
    pub async fn receive(&self, content: UpstreamContent) -> Result<Bytes, NoResponse> {
        match content {
            UpstreamContent::Whole(content) => Ok(content),
            UpstreamContent::Streamed(body) => self.in_time(whole(body)).await,
        }
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, NoResponse>>) -> Result<T, NoResponse> {
        let work = timeout(self.answer_timeout, work);
        let outcome = self.process.unless_stopped(work).await.map_err(|Stopped| NoResponse::Stopped)?;
        outcome.unwrap_or(Err(NoResponse::Late))
    }

    async fn send_again_if_lost(
        &self,
        request: Request<Full<Bytes>>,
        is_safe: bool,
    ) -> Result<Response<Incoming>, NoResponse> {
        let again = is_safe.then(|| request.clone());
        match (self.send_once(request).await, again) {
            (Err(NoResponse::Lost), Some(again)) => self.send_once(again).await,
            (outcome, _) => outcome,
        }
    }

    async fn send_once(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, NoResponse> {
        let failure = |error: hyper_util::client::legacy::Error| {
            if error.is_connect() { NoResponse::NotSent } else { NoResponse::Lost }
        };
        self.client.request(request).await.map_err(failure)
    }
}

async fn whole(body: impl Body<Data = Bytes>) -> Result<Bytes, NoResponse> {
    body.collect().await.map(Collected::to_bytes).map_err(|_| NoResponse::Lost)
}

pub enum UpstreamContent {
    Whole(Bytes),
    Streamed(UpstreamBody),
}

impl UpstreamContent {
    /// Returns the size of the body, as far as it is known.
    pub fn bytes(&self) -> usize {
        match self {
            UpstreamContent::Whole(content) => content.len(),
            UpstreamContent::Streamed(body) => usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX),
        }
    }
}

/// Body of a response that has begun. It fails if the process stops.
pub struct UpstreamBody {
    body: Incoming,
    process: Rc<ProcessState>,
    /// Set while the process owes bytes.
    stopped: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl UpstreamBody {
    pub fn new(body: Incoming, process: Rc<ProcessState>) -> UpstreamBody {
        UpstreamBody { body, process, stopped: None }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let UpstreamBody { body, process, stopped } = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            *stopped = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        let stopped = stopped.get_or_insert_with(|| Box::pin(process.clone().stopped()));
        stopped.as_mut().poll(context).map(|()| Some(Err(io::ErrorKind::TimedOut.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[derive(Clone)]
struct UnixConnector {
    socket: Arc<PathBuf>,
    process: PeerProcess,
    /// Held by the one connection that is being opened. If hundreds tried again and again while the backlog is full, Python
    /// would have no time to accept them.
    turn: Arc<Mutex<()>>,
}

impl Service<Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let UnixConnector { socket, process, turn } = self.clone();
        Box::pin(async move {
            let _turn = turn.lock().await;
            let connection = loop {
                match UnixStream::connect(&*socket).await {
                    // The backlog of the process is full.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(CONNECT_AGAIN).await,
                    outcome => break outcome?,
                }
            };
            process.set(&connection);
            Ok(TokioIo::new(connection))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixListener;

    use tokio::runtime;
    use tokio::task::LocalSet;

    use super::*;

    fn thread_cpu_time() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes one timespec.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
        Duration::from_secs(time.tv_sec.cast_unsigned()) + Duration::from_nanos(time.tv_nsec.cast_unsigned())
    }

    #[test]
    fn connections_wait_for_a_full_backlog_without_work() {
        const WAITING: usize = 300;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("python.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        // SAFETY: the call only changes the backlog of a listener.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 1) }, 0);
        let runtime =
            runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            let connector =
                UnixConnector { socket: path.into(), process: ProcessState::new().peer(), turn: Arc::default() };
            let opened: Vec<_> =
                (0..WAITING).map(|_| spawn_local(connector.clone().call(Uri::from_static("http://python")))).collect();
            let before = thread_cpu_time();
            sleep(100 * CONNECT_AGAIN).await;
            let used = thread_cpu_time() - before;
            assert!(used < Duration::from_millis(100), "{used:?}");
            let accepting =
                std::thread::spawn(move || (0..WAITING).for_each(|_| drop(listener.accept().expect("a connection"))));
            for connection in opened {
                connection.await.expect("a task").expect("a connection");
            }
            accepting.join().expect("all are accepted");
        });
    }
}
