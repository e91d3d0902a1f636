//! Start of the edge-guard process: alone with the saved routes, or with the routes and sockets of an older process.
//!
//! All steps that can fail happen before the older process stops serving. If a step fails, the newer process logs the
//! reason and exits, and the older process continues.

use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use socket2::SockRef;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::admin_server;
use crate::config::{Config, Listen};
use crate::folder_lock::FolderLock;
use crate::handover::{self, InheritedSockets, OlderProcess, ReceivedState};
use crate::listener::bind_stream;
use crate::operator_log;
use crate::predecessor::Predecessor;
use crate::route_controller::AdminCommand;
use crate::route_set::RouteSet;
use crate::route_set::route_file::RouteFile;

pub struct Startup {
    pub lock: FolderLock,
    pub set: RouteSet,
    pub inherited: InheritedSockets,
    pub predecessor: Option<Arc<Predecessor>>,
    pub opened: OpenedSockets,
}

pub struct OpenedSockets {
    pub hosts: [Option<TcpListener>; 2],
    pub admin: admin_server::AdminSocket,
    pub commands: UnboundedSender<AdminCommand>,
    pub command_receiver: UnboundedReceiver<AdminCommand>,
}

impl OpenedSockets {
    fn new(config: &Config, inherited: &mut [Option<TcpListener>; 2]) -> Result<Self, String> {
        let open = |listen: &Option<Listen>, inherited: &mut Option<TcpListener>| {
            let Some(listen) = listen else { return Ok(None) };
            let socket = match inherited.take_if(|socket| matches_setting(listen, socket)) {
                Some(socket) => socket,
                None => listen_on(listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?,
            };
            Ok::<_, String>(Some(socket))
        };
        let [http, https] = inherited;
        let hosts = [open(&config.http, http)?, open(&config.https, https)?];
        let (commands, command_receiver) = unbounded_channel();
        forward_signals(&commands).map_err(|error| format!("cannot handle signals: {error}"))?;
        // Last, because a failure would leave its file.
        let admin = admin_server::bind(&config.folder).map_err(|error| admin_socket_error(&config.folder, &error))?;
        Ok(Self { hosts, admin, commands, command_receiver })
    }
}

fn admin_socket_error(folder: &Path, error: &std::io::Error) -> String {
    format!("{}: cannot listen: {error}", folder.display())
}

impl Startup {
    pub fn start_alone(lock: FolderLock, config: &Config) -> Result<Self, String> {
        let opened = OpenedSockets::new(config, &mut [None, None])?;
        opened.admin.put().map_err(|error| admin_socket_error(&config.folder, &error))?;
        Ok(Self { lock, set: load(&config.folder), inherited: InheritedSockets::default(), predecessor: None, opened })
    }

    pub fn take_over(config: &Config) -> Result<Self, String> {
        let takeover_error = |error: std::io::Error| format!("cannot take over: {error}");
        let stream = handover::connect(&config.folder).map_err(takeover_error)?;
        let older = OlderProcess::of(&stream).map_err(takeover_error)?;
        let mut received = handover::receive(&stream).map_err(takeover_error)?;
        let lock = received.lock.take().ok_or("cannot take over: the older process sent no lock")?;
        let opened = OpenedSockets::new(config, &mut received.hosts)?;
        if let Err(error) = handover::accept(&stream, &older) {
            opened.admin.discard();
            return Err(takeover_error(error));
        }
        Ok(Self::replace(stream, lock, received, opened))
    }

    /// Finishes the start after a handover. Logs errors and continues, because the older process no longer serves.
    fn replace(stream: UnixStream, lock: OwnedFd, received: ReceivedState, opened: OpenedSockets) -> Self {
        let lock = FolderLock::inherit(lock);
        if let Err(error) = lock.write_pid() {
            operator_log::write_line(&format!("cannot write the PID file: {error}"));
        }
        if let Err(error) = opened.admin.put() {
            operator_log::write_line(&format!("cannot move the admin socket: {error}"));
        }
        let predecessor = Predecessor::new(stream)
            .inspect_err(|error| operator_log::write_line(&format!("cannot reach the older process: {error}")))
            .ok();
        Self { lock, set: received.set, inherited: received.inherited, predecessor, opened }
    }
}

fn load(folder: &Path) -> RouteSet {
    RouteFile::new(folder).load().unwrap_or_else(|error| {
        // Only manual edits damage the file. The data plane sends all routes again.
        operator_log::write_line(&format!("routes: {error}; set aside as routes.damaged"));
        let _ = std::fs::rename(folder.join("routes"), folder.join("routes.damaged"));
        RouteSet::default()
    })
}

pub fn instance() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_or_else(
        |_| format!("{}-{:?}", std::process::id(), std::time::SystemTime::now()),
        |uuid| uuid.trim().to_owned(),
    )
}

fn forward_signals(commands: &UnboundedSender<AdminCommand>) -> std::io::Result<()> {
    let kinds: [(SignalKind, fn() -> AdminCommand); 3] = [
        (SignalKind::terminate(), || AdminCommand::Drain),
        (SignalKind::interrupt(), || AdminCommand::Drain),
        (SignalKind::hangup(), || AdminCommand::Reload),
    ];
    for (kind, command) in kinds {
        let mut signals = signal(kind)?;
        let commands = commands.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let _ = commands.send(command());
            }
        });
    }
    Ok(())
}

fn listen_on(listen: &Listen) -> std::io::Result<TcpListener> {
    match listen {
        Listen::Address(address) => bind_stream(*address),
        Listen::Inherited(number) => {
            // SAFETY: the descriptor stays open during the query.
            let passed = unsafe { BorrowedFd::borrow_raw(*number) };
            if !SockRef::from(&passed).is_listener()? {
                return Err(std::io::Error::other("not a listening socket"));
            }
            // SAFETY: the setting passes ownership, and no other descriptor has an occupied number.
            let socket = TcpListener::from(unsafe { OwnedFd::from_raw_fd(*number) });
            socket.set_nonblocking(true)?;
            socket.local_addr()?;
            Ok(socket)
        }
    }
}

fn matches_setting(listen: &Listen, socket: &TcpListener) -> bool {
    match (listen, socket.local_addr()) {
        // An inherited listener from the settings is the newer one.
        (Listen::Inherited(_), _) => false,
        (Listen::Address(wanted), Ok(is)) => {
            wanted.ip() == is.ip() && (wanted.port() == 0 || wanted.port() == is.port())
        }
        (_, Err(_)) => false,
    }
}
