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
    say: mpsc::UnboundedSender<HandoverMessage>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    is_over: bool,
    waiting: HashMap<String, Vec<oneshot::Sender<()>>>,
}

impl Predecessor {
    pub fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Arc<Self>> {
        stream.set_read_timeout(None)?;
        stream.set_nonblocking(true)?;
        let (mut from, to) = UnixStream::from_std(stream)?.into_split();
        let (say, said) = mpsc::unbounded_channel();
        let state: Arc<Mutex<State>> = Arc::default();
        tokio::spawn(write_all(to, said));
        let heard = state.clone();
        tokio::spawn(async move {
            while let Ok(frame) = read_frame(&mut from).await {
                if let HandoverMessage::Gone(owner) = frame {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).waiting.remove(&owner);
                }
            }
            // All connections of the process have ended with it.
            let mut state = heard.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_over = true;
            state.waiting.clear();
        });
        Ok(Arc::new(Self { say, state }))
    }

    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_over
    }

    /// Ends the connections of a lobby or server in the older process.
    ///
    /// Returns when these connections, or the older process, have ended.
    pub async fn remove(&self, owner: &str) {
        let gone = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return;
            }
            let (waits, gone) = oneshot::channel();
            state.waiting.entry(owner.to_owned()).or_default().push(waits);
            gone
        };
        let _ = self.say.send(HandoverMessage::Remove(owner.to_owned()));
        // The channel also closes when the process ends.
        let _ = gone.await;
    }

    pub fn stop(&self) {
        let _ = self.say.send(HandoverMessage::Stop);
    }
}

async fn write_all(mut to: OwnedWriteHalf, mut said: mpsc::UnboundedReceiver<HandoverMessage>) {
    while let Some(frame) = said.recv().await {
        if write_frame(&mut to, &frame).await.is_err() {
            return;
        }
    }
}
