//! What an edge-guard begins with: the routes and sockets of before, and what it has to have of its own.
//!
//! Whatever may fail is done before anything is taken from a process that serves: a newer one that cannot serve, as
//! somebody else has its new address, ends with its reason, and the older one goes on.

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
use crate::handover::{self, ReceivedState};
use crate::inherited::InheritedSockets;
use crate::listener::bind_stream;
use crate::operator_log;
use crate::predecessor::Predecessor;
use crate::route_controller::AdminCommand;
use crate::route_set::{RouteFile, RouteSet};

/// What a life begins with.
pub struct Startup {
    /// The folder is ours.
    pub lock: FolderLock,
    /// The routes of before.
    pub set: RouteSet,
    /// Their sockets, where another process had them.
    pub inherited: InheritedSockets,
    /// Who had them before and still carries connections.
    pub predecessor: Option<Arc<Predecessor>>,
    /// What was opened for it.
    pub opened: OpenedSockets,
}

/// What a life has to have, and may not get.
pub struct OpenedSockets {
    /// Listeners of hosts: plain, TLS.
    pub hosts: [Option<TcpListener>; 2],
    /// The administrators' socket.
    pub admin: admin_server::AdminSocket,
    /// Orders to the control thread; those of signals come already.
    pub commands: UnboundedSender<AdminCommand>,
    /// Where they come out.
    pub told: UnboundedReceiver<AdminCommand>,
}

impl OpenedSockets {
    fn new(config: &Config, taken: &mut [Option<TcpListener>; 2]) -> Result<Self, String> {
        let open = |listen: &Option<Listen>, taken: &mut Option<TcpListener>| {
            let Some(listen) = listen else { return Ok(None) };
            let socket = match taken.take_if(|socket| matches_setting(listen, socket)) {
                Some(socket) => socket,
                None => listen_on(listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?,
            };
            Ok::<_, String>(Some(socket))
        };
        let [http, https] = taken;
        let hosts = [open(&config.http, http)?, open(&config.https, https)?];
        let (commands, told) = unbounded_channel();
        forward_signals(&commands).map_err(|error| format!("cannot hear signals: {error}"))?;
        // The last: nothing that may fail here leaves its file behind.
        let admin = admin_server::bind(&config.folder).map_err(|error| admin_socket_error(&config.folder, &error))?;
        Ok(Self { hosts, admin, commands, told })
    }
}

fn admin_socket_error(folder: &Path, error: &std::io::Error) -> String {
    format!("{}: cannot listen: {error}", folder.display())
}

impl Startup {
    /// With the routes on disk.
    ///
    /// # Errors
    /// What cannot be opened, and why: a listener of hosts, the admin socket, signals.
    pub fn start_alone(lock: FolderLock, config: &Config) -> Result<Self, String> {
        let opened = OpenedSockets::new(config, &mut [None, None])?;
        opened.admin.put().map_err(|error| admin_socket_error(&config.folder, &error))?;
        Ok(Self { lock, set: load(&config.folder), inherited: InheritedSockets::default(), predecessor: None, opened })
    }

    /// With everything of the process that has the folder.
    ///
    /// # Errors
    /// It does not give it, or what cannot be opened: then the other process goes on.
    pub fn take_over(config: &Config) -> Result<Self, String> {
        let not_given = |error: std::io::Error| format!("cannot take over: {error}");
        let stream = handover::connect(&config.folder).map_err(not_given)?;
        let mut taken = handover::receive(&stream).map_err(not_given)?;
        let lock = taken.lock.take().ok_or("cannot take over: the lock did not come")?;
        let opened = OpenedSockets::new(config, &mut taken.hosts)?;
        if let Err(error) = handover::accept(&stream) {
            opened.admin.discard();
            return Err(not_given(error));
        }
        Ok(Self::replace(stream, lock, taken, opened))
    }

    /// Nobody else serves any more: what goes wrong from here on is said, and no reason to end.
    fn replace(stream: UnixStream, lock: OwnedFd, taken: ReceivedState, opened: OpenedSockets) -> Self {
        let lock = FolderLock::inherit(lock);
        if let Err(error) = lock.write_pid() {
            operator_log::write_line(&format!("the lock is not signed: {error}"));
        }
        if let Err(error) = opened.admin.put() {
            operator_log::write_line(&format!("the admin socket is not in its place: {error}"));
        }
        let predecessor = Predecessor::new(stream)
            .inspect_err(|error| {
                operator_log::write_line(&format!("the older process cannot be told anything: {error}"))
            })
            .ok();
        Self { lock, set: taken.set, inherited: taken.inherited, predecessor, opened }
    }
}

fn load(folder: &Path) -> RouteSet {
    RouteFile::new(folder).load().unwrap_or_else(|error| {
        // Never seen unless somebody wrote into it. All routes come again when the data plane answers.
        operator_log::write_line(&format!("routes: {error}; set aside as routes.damaged"));
        let _ = std::fs::rename(folder.join("routes"), folder.join("routes.damaged"));
        RouteSet::default()
    })
}

/// A name that no other process has.
pub fn instance() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_or_else(
        |_| format!("{}-{:?}", std::process::id(), std::time::SystemTime::now()),
        |uuid| uuid.trim().to_owned(),
    )
}

/// Signals become orders.
fn forward_signals(commands: &UnboundedSender<AdminCommand>) -> std::io::Result<()> {
    let kinds: [(SignalKind, fn() -> AdminCommand); 3] = [
        (SignalKind::terminate(), || AdminCommand::Drain),
        (SignalKind::interrupt(), || AdminCommand::Drain),
        (SignalKind::hangup(), || AdminCommand::ReadAgain),
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
            // SAFETY: it is only asked what it is, and by nobody else closed meanwhile.
            let given = unsafe { BorrowedFd::borrow_raw(*number) };
            if !SockRef::from(&given).is_listener()? {
                return Err(std::io::Error::other("it does not listen"));
            }
            // SAFETY: whoever started us says that this descriptor is ours; nothing else here uses its number, since
            // descriptors are taken from the lowest free number and this one is taken.
            let socket = TcpListener::from(unsafe { OwnedFd::from_raw_fd(*number) });
            socket.set_nonblocking(true)?;
            socket.local_addr()?;
            Ok(socket)
        }
    }
}

/// Whether a listener of before is the one that the settings ask for.
fn matches_setting(listen: &Listen, socket: &TcpListener) -> bool {
    match (listen, socket.local_addr()) {
        // What we were given is the newest, and has whoever waits at the same socket.
        (Listen::Inherited(_), _) => false,
        (Listen::Address(wanted), Ok(is)) => {
            wanted.ip() == is.ip() && (wanted.port() == 0 || wanted.port() == is.port())
        }
        (_, Err(_)) => false,
    }
}
