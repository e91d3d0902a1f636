//! Main loop of edge-guard: serves until the process is stopped, drained, or replaced by a newer process.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use crate::folder_lock::FolderLock;
use crate::handover::{self, HandoverMessage, HandoverOffer, SharedDescriptor, SocketRole, read_frame, write_frame};
use crate::listener::Listener;
use crate::metrics::ControlFailure;
use crate::operator_log;
use crate::process_context::ProcessContext;
use crate::route_client::RouteClient;
use crate::route_controller::{AdminCommand, RouteController, outcomes};
use crate::route_listeners::{RouteListeners, RouteOutcome};
use crate::route_set::route_file::RouteFile;
use crate::session_reporter::report_sessions;
use crate::startup::{OpenedSockets, Startup, instance};
use crate::udp::{MigratedSession, Player};

fn to_async(stream: std::os::unix::net::UnixStream) -> std::io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Reads handover messages in a separate task, because a cancelled read would lose a part of a message.
fn read_messages(mut from: OwnedReadHalf) -> UnboundedReceiver<HandoverMessage> {
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok(frame) = read_frame(&mut from).await {
            let _ = sender.send(frame);
        }
    });
    receiver
}

pub struct EdgeGuard {
    context: ProcessContext,
    control: RouteController,
    listeners: [Option<Listener>; 2],
    lock: FolderLock,
    command_receiver: UnboundedReceiver<AdminCommand>,
    admin: tokio::task::JoinHandle<()>,
}

impl EdgeGuard {
    pub fn start(context: ProcessContext, startup: Startup, descriptors: u64) -> Self {
        let Startup { lock, set, inherited, predecessor, opened } = startup;
        let OpenedSockets { hosts, admin: socket, commands, command_receiver } = opened;
        let folder = &context.shared.config.folder;
        let listeners = context.open_host_listeners(hosts);
        let (outcome_sender, outcomes) = outcomes();
        let has_listeners = (listeners[0].is_some(), listeners[1].is_some());
        let mut route_listeners = RouteListeners::new(
            context.shared.clone(),
            context.workers.clone(),
            context.datagrams.clone(),
            has_listeners,
            outcome_sender,
        );
        route_listeners.inherited = inherited;
        route_listeners.predecessor = predecessor;
        route_listeners.serve_all(&set);
        let (config, instance) = (&context.shared.config, instance());
        let source = RouteClient::new(&config.source, &config.edge_id, &instance, context.shared.contact.clone());
        let (data_plane, players) = (config.source.clone(), context.shared.players.clone());
        // Ends with the process. After a handover it reports the remaining sessions.
        tokio::spawn(async move { report_sessions(&data_plane, instance, players).await });
        let saved_routes = (RouteFile::new(folder), set);
        let control = RouteController::new(
            route_listeners,
            source,
            saved_routes,
            outcomes,
            context.counters.clone(),
            context.status.clone(),
        );
        context.publish_capacity(descriptors, context.shared.config.limits.datagram_sessions);
        let admin = tokio::spawn(Arc::new(context.admin(commands, &listeners)).serve(socket.listener));
        Self { context, control, listeners, lock, command_receiver, admin }
    }

    /// Runs edge-guard to its end and returns the exit code.
    pub async fn run(mut self) -> u8 {
        loop {
            match self.control.run_until_command(&mut self.command_receiver).await {
                AdminCommand::Stop => break,
                AdminCommand::Drain => {
                    self.drain().await;
                    break;
                }
                AdminCommand::Reload => self.reload(),
                AdminCommand::HandOver(stream) => {
                    if let Some(stream) = self.hand_over(stream).await {
                        return self.finish_connections(stream).await;
                    }
                }
            }
        }
        if let Some(predecessor) = &self.control.route_listeners.predecessor {
            predecessor.stop();
            // Waits for the final report, but not long: a stop is urgent.
            let end = Instant::now() + Duration::from_secs(2);
            while !predecessor.is_over() && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        self.admin.abort();
        let _ = std::fs::remove_file(self.context.shared.config.folder.join("admin.sock"));
        operator_log::write_line("stopped");
        0
    }

    /// Hands all sockets and routes over to a newer process, and returns the stream to it.
    ///
    /// Returns `None` if the handover failed. This process then continues to serve.
    async fn hand_over(&mut self, stream: std::os::unix::net::UnixStream) -> Option<UnixStream> {
        self.control.finish_save().await;
        let sessions = self.context.datagrams.pause().await;
        let sent_offer = match self.handover_offer(sessions) {
            Ok(handover_offer) => {
                tokio::task::spawn_blocking(move || handover::send_offer(&stream, &handover_offer).map(|()| stream))
                    .await
            }
            Err(error) => Ok(Err(error)),
        };
        // Until this message is sent, this process can still continue. Afterwards it reads nothing more. So the message
        // is the last step that can fail.
        let confirmed = sent_offer.map_err(std::io::Error::other).and_then(|result| result).and_then(|stream| {
            let confirming = stream.try_clone()?;
            let stream = to_async(stream)?;
            handover::confirm(&confirming).map(|()| stream)
        });
        let stream = match confirmed {
            Ok(stream) => stream,
            Err(error) => {
                operator_log::write_line(&format!("handover failed: {error}"));
                self.context.counters.failures.with_label(ControlFailure::Handover).increment();
                self.context.datagrams.resume();
                return None;
            }
        };
        self.context.datagrams.close_all().await;
        self.control.route_listeners.stop_accepting();
        self.listeners = [None, None];
        self.admin.abort();
        Some(stream)
    }

    fn handover_offer(&self, sessions: Vec<MigratedSession>) -> std::io::Result<HandoverOffer> {
        let mut sockets: Vec<(SocketRole, SharedDescriptor)> = vec![(SocketRole::Lock, self.lock.descriptor())];
        for (listener, role) in self.listeners.iter().zip([SocketRole::Http, SocketRole::Https]) {
            if let Some(listener) = listener {
                sockets.push((role, listener.socket()));
            }
        }
        let (listeners, datagrams) = self.control.route_listeners.sockets();
        for listener in listeners {
            let port = listener.address().map_or(0, |address| address.port());
            sockets.push((SocketRole::Stream { port }, listener.socket()));
        }
        let mut ports = HashMap::new();
        for (number, socket) in datagrams {
            let port = socket.local_addr()?.port();
            ports.insert(number, port);
            sockets.push((SocketRole::Datagram { port }, socket.clone()));
        }
        for MigratedSession { number, player, backend, rank, socket } in sessions {
            if let Some(port) = ports.get(&number).copied() {
                let Player { sender, local, named } = player;
                sockets.push((SocketRole::Session { port, sender, local, named, backend, rank }, socket));
            }
        }
        Ok(HandoverOffer { sockets, set: self.control.set().clone() })
    }

    /// Serves the open connections until they end. The newer process serves all new connections.
    async fn finish_connections(self, stream: UnixStream) -> u8 {
        let Self { context, mut control, lock, mut command_receiver, .. } = self;
        // The newer process has a duplicate of the lock.
        drop(lock);
        let end = Instant::now() + context.shared.timeouts().replaced;
        let (from, mut to) = stream.into_split();
        let mut frames = read_messages(from);
        // This process receives no new routes, so kept-alive clients are sent to the newer one.
        context.shared.leave_signal.send_replace(true);
        operator_log::write_line(&format!("replaced; {} connections and sessions are open", context.active_count()));
        let mut poll_interval = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                Some(frame) = frames.recv() => match frame {
                    HandoverMessage::RemoveOwner(owner) => control.route_listeners.remove(&owner),
                    HandoverMessage::Stop => break,
                    _ => {}
                },
                Some(outcome) = control.outcome() => {
                    if let RouteOutcome::Removed(owner) = outcome {
                        let _ = write_frame(&mut to, &HandoverMessage::OwnerRemoved(owner)).await;
                    }
                }
                Some(command) = command_receiver.recv() => {
                    if matches!(command, AdminCommand::Stop | AdminCommand::Drain) {
                        break;
                    }
                }
                _ = poll_interval.tick() => {
                    let is_predecessor_over = control.route_listeners.predecessor.as_ref().is_none_or(|before| before.is_over());
                    if (context.active_count() == 0 && is_predecessor_over) || Instant::now() >= end {
                        break;
                    }
                }
            }
        }
        if let Some(predecessor) = &control.route_listeners.predecessor {
            predecessor.stop();
        }
        operator_log::write_line("replaced; all connections have ended");
        0
    }

    /// Closes the listeners, and waits until all connections have ended or the drain timeout is over.
    async fn drain(&mut self) {
        self.context.status.lock().unwrap_or_else(PoisonError::into_inner).is_leaving = true;
        let end = Instant::now() + self.context.shared.timeouts().drain;
        operator_log::write_line(&format!(
            "draining: {} connections and sessions are open",
            self.context.active_count()
        ));
        self.listeners = [None, None];
        self.control.route_listeners.stop_accepting();
        self.context.shared.leave_signal.send_replace(true);
        while self.context.active_count() > 0 && Instant::now() < end {
            match tokio::time::timeout(Duration::from_millis(50), self.command_receiver.recv()).await {
                Ok(Some(AdminCommand::Drain | AdminCommand::Stop)) => return,
                Ok(Some(AdminCommand::Reload | AdminCommand::HandOver(_)) | None) | Err(_) => {}
            }
        }
    }

    fn reload(&self) {
        match self.context.reload() {
            Ok(()) => operator_log::write_line("reloaded certificates, limits and timeouts"),
            Err(problems) => {
                problems.iter().for_each(|problem| operator_log::write_line(problem));
                operator_log::write_line("keeping the former certificates, limits and timeouts");
                self.context.counters.failures.with_label(ControlFailure::Certificates).increment();
            }
        }
    }
}
