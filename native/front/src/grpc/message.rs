//! Reading of the one request message of a call, within limits of bytes and of time.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::limits::body_budget::{Full, Reservation};
use crate::responses::problems::Problem;

/// Flag for compression, and the length of the message.
pub const PREFIX_BYTES: usize = 5;
/// A message without fields.
pub const EMPTY: [u8; PREFIX_BYTES] = [0; PREFIX_BYTES];

/// Time for which a call waits for its message without a part of the budget.
const FREE_WAIT: Duration = Duration::from_millis(500);

/// A complete message.
pub struct Message {
    /// The prefix and the message.
    pub framed: Bytes,
    pub is_compressed: bool,
}

impl Message {
    pub fn content(&self) -> &[u8] {
        &self.framed[PREFIX_BYTES..]
    }
}

pub enum MessageFailure {
    Problem(Problem),
    /// The message has this length.
    TooLarge(usize),
    /// The client has reset the call or the connection.
    Gone,
}

impl From<Full> for MessageFailure {
    fn from(full: Full) -> MessageFailure {
        MessageFailure::Problem(full.into())
    }
}

/// Reads the first message, and ignores further ones. A call that waits longer than [`FREE_WAIT`] takes `waiting_bytes` of
/// the budget, and a message in several frames takes its length.
pub async fn read_message(
    body: &mut Incoming,
    bytes_max: usize,
    until: Instant,
    waiting_bytes: usize,
    reservation: &mut Reservation,
) -> Result<Message, MessageFailure> {
    let mut received = BytesMut::new();
    loop {
        let data = match next_data_until(body, until, waiting_bytes, reservation).await? {
            Some(data) => data,
            None => return Err(MessageFailure::Problem(Problem::NoMessage)),
        };
        if received.is_empty()
            && let Some(length) = framed_length(&data, bytes_max)?
            && data.len() >= length
        {
            return Ok(message(data.slice(..length)));
        }
        reservation.grow_to(received.len() + data.len() + waiting_bytes)?;
        received.extend_from_slice(&data);
        if let Some(length) = framed_length(&received, bytes_max)?
            && received.len() >= length
        {
            received.truncate(length);
            return Ok(message(received.freeze()));
        }
    }
}

/// Returns None at the end of the stream.
async fn next_data_until(
    body: &mut Incoming,
    until: Instant,
    waiting_bytes: usize,
    reservation: &mut Reservation,
) -> Result<Option<Bytes>, MessageFailure> {
    let mut next = pin!(next_data(body));
    let data = match timeout_at(until.min(Instant::now() + FREE_WAIT), next.as_mut()).await {
        Ok(data) => data,
        Err(_) => {
            reservation.grow_to(waiting_bytes)?;
            let late = MessageFailure::Problem(Problem::RequestTimeout);
            timeout_at(until, next).await.map_err(|_| late)?
        }
    };
    data.transpose().map_err(|_| MessageFailure::Gone)
}

fn message(framed: Bytes) -> Message {
    let is_compressed = framed[0] != 0;
    Message { framed, is_compressed }
}

/// Returns the length with the prefix, once the prefix is known.
fn framed_length(received: &[u8], bytes_max: usize) -> Result<Option<usize>, MessageFailure> {
    match length(received) {
        Some(length) if length > bytes_max => Err(MessageFailure::TooLarge(length)),
        length => Ok(length.map(|length| PREFIX_BYTES + length)),
    }
}

/// Returns the length of the message, without its prefix.
pub fn length(received: &[u8]) -> Option<usize> {
    received.get(1..PREFIX_BYTES).map(|mut length| length.get_u32() as usize)
}

/// Returns None at the end of the stream.
async fn next_data(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        match frame.map(|frame| frame.into_data()) {
            Ok(Ok(data)) if data.is_empty() => {}
            Ok(Ok(data)) => return Some(Ok(data)),
            Ok(Err(_trailers)) => return None,
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Writes a message after its prefix.
pub fn framed(write: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut bytes = vec![0; PREFIX_BYTES];
    write(&mut bytes);
    let length = (bytes.len() - PREFIX_BYTES) as u32;
    bytes[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    bytes.into()
}
