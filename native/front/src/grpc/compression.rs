//! Compressed messages, as the gRPC specification describes them.

use std::io::{self, Read};

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::header::{HeaderMap, HeaderName};
use tokio::task::yield_now;

use crate::grpc::message::{Message, PREFIX_BYTES};
use crate::limits::body_budget::{Full, Reservation};

pub const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const INTERNAL: i32 = 13;
/// Bytes that are decompressed before other requests run.
const STEP_BYTES: usize = 64 * 1024;

pub enum Failure {
    /// Status and message of gRPC itself.
    Status(i32, &'static str),
    /// The message is longer than this limit of the method.
    TooLarge(usize),
    Full(Full),
}

const UNKNOWN_ENCODING: Failure = Failure::Status(INTERNAL, "Error parsing 'grpc-encoding' metadata");
const NO_ENCODING: Failure = Failure::Status(INTERNAL, "Compression bit set but no encoding configured");
const DAMAGED: Failure = Failure::Status(INTERNAL, "Decompression failed due to zlib error");

/// Returns a message without compression. The reservation counts its bytes too.
pub async fn decompressed(
    message: Message,
    metadata: &HeaderMap,
    bytes_max: usize,
    reservation: &mut Reservation,
) -> Result<Message, Failure> {
    let encoding = metadata.get(GRPC_ENCODING).map_or(&b"identity"[..], |encoding| encoding.as_bytes());
    if !matches!(encoding, b"identity" | b"gzip" | b"deflate") {
        return Err(UNKNOWN_ENCODING);
    }
    if !message.is_compressed {
        return Ok(message);
    }
    // Boxed, because the future of each call is moved several times.
    let framed = match encoding {
        b"gzip" => Box::pin(read_all(MultiGzDecoder::new(message.content()), bytes_max, reservation)).await?,
        b"deflate" => Box::pin(read_all(ZlibDecoder::new(message.content()), bytes_max, reservation)).await?,
        _ => return Err(NO_ENCODING),
    };
    Ok(Message { framed, is_compressed: false })
}

/// Returns the content after its prefix.
async fn read_all(mut content: impl Read, bytes_max: usize, reservation: &mut Reservation) -> Result<Bytes, Failure> {
    let mut framed = BytesMut::zeroed(PREFIX_BYTES);
    loop {
        let room = (PREFIX_BYTES + bytes_max + 1).saturating_sub(framed.len()).min(STEP_BYTES) as u64;
        let mut step = (&mut framed).writer();
        let bytes = match io::copy(&mut content.by_ref().take(room), &mut step) {
            Ok(0) => break,
            Ok(bytes) => bytes as usize,
            Err(_) => return Err(DAMAGED),
        };
        if framed.len() > PREFIX_BYTES + bytes_max {
            return Err(Failure::TooLarge(bytes_max));
        }
        reservation.grow_by(bytes).map_err(Failure::Full)?;
        yield_now().await;
    }
    let length = (framed.len() - PREFIX_BYTES) as u32;
    framed[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(framed.freeze())
}
