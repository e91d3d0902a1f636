//! Connection to the older process, which still serves its open connections after a handover.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot};

use crate::handover::{HandoverMessage, read_frame, write_frame};

#[derive(Debug)]
pub struct Predecessor {
    sender: mpsc::UnboundedSender<HandoverMessage>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    removal_waiters: HashMap<String, Vec<oneshot::Sender<()>>>,
}

impl Predecessor {
    pub fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Arc<Self>> {
        stream.set_read_timeout(None)?;
        stream.set_nonblocking(true)?;
        let (mut from, to) = UnixStream::from_std(stream)?.into_split();
        let (sender, receiver) = mpsc::unbounded_channel();
        let state: Arc<Mutex<State>> = Arc::default();
        tokio::spawn(write_all(to, receiver));
        let shared_state = state.clone();
        tokio::spawn(async move {
            while let Ok(frame) = read_frame(&mut from).await {
                if let HandoverMessage::OwnerRemoved(owner) = frame {
                    shared_state.lock().unwrap_or_else(PoisonError::into_inner).removal_waiters.remove(&owner);
                }
            }
            // All connections of the process have ended with it.
            let mut state = shared_state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_over = true;
            state.removal_waiters.clear();
        });
        Ok(Arc::new(Self { sender, state }))
    }

    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_over
    }

    /// Ends the connections of a lobby or server in the older process.
    ///
    /// Returns when these connections, or the older process, have ended.
    pub async fn remove(&self, owner: &str) {
        let removed = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return;
            }
            let (notify, removed) = oneshot::channel();
            state.removal_waiters.entry(owner.to_owned()).or_default().push(notify);
            removed
        };
        let _ = self.sender.send(HandoverMessage::RemoveOwner(owner.to_owned()));
        // The channel also closes when the process ends.
        let _ = removed.await;
    }

    pub fn stop(&self) {
        let _ = self.sender.send(HandoverMessage::Stop);
    }
}

async fn write_all(mut to: OwnedWriteHalf, mut receiver: mpsc::UnboundedReceiver<HandoverMessage>) {
    while let Some(frame) = receiver.recv().await {
        if write_frame(&mut to, &frame).await.is_err() {
            return;
        }
    }
}
