//! HTTP/2 frames of a client, read from the bytes of an input.
//!
//! An input is a list of steps: kind, flags, stream, number of content bytes, content. The content of the last step may be
//! shorter. Steps of the kinds [`CALL`], [`MESSAGE`] and [`CONNECTED`] are valid calls. Kinds from [`RAW`] on are bytes
//! without a frame, and each other kind is the type of one frame.

use std::collections::BTreeMap;

use prost::Message as _;

use crate::raw_http2::{DATA, END_HEADERS, END_STREAM, HEADERS, PING, frame};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PADDED: u8 = 8;
/// Begins a call on the next stream: path and metadata, with a zero byte between them.
const CALL: u8 = 0x40;
/// Sends a message on an open stream.
const MESSAGE: u8 = 0x41;
/// Sends a `PlayerConnectedRequest`.
const CONNECTED: u8 = 0x42;
const RAW: u8 = 0x80;

#[derive(Default)]
pub struct ClientFrames {
    pub bytes: Vec<u8>,
    /// Data of each stream without padding.
    pub data: BTreeMap<u32, Vec<u8>>,
    /// Streams of valid calls that the client has ended.
    pub ended: Vec<u32>,
    open: Vec<u32>,
    last_stream: u32,
    /// Whether all steps are valid calls.
    pub is_valid: bool,
    /// Whether some bytes have no frame.
    pub has_raw: bool,
}

/// Values of the names in an input.
pub struct Tokens {
    pub lobby: String,
    pub player: String,
}

pub fn read(mut input: &[u8], tokens: &Tokens) -> ClientFrames {
    let mut frames = ClientFrames { bytes: PREFACE.to_vec(), is_valid: true, ..ClientFrames::default() };
    while let [kind, flags, stream, length, rest @ ..] = input {
        let (content, rest) = rest.split_at(rest.len().min((*length).into()));
        frames.step(*kind, *flags, *stream, content, tokens);
        input = rest;
    }
    frames.frame(PING, 0, 0, &[0; 8]);
    frames
}

impl ClientFrames {
    fn step(&mut self, kind: u8, flags: u8, stream: u8, content: &[u8], tokens: &Tokens) {
        match kind {
            CALL => self.begin_call(flags, content, tokens),
            MESSAGE => self.message(flags, stream, content),
            CONNECTED => {
                let player_token = tokens.player.clone();
                let message = hosting_matchmaker::proto::PlayerConnectedRequest { player_token };
                self.message(flags, stream, &message.encode_to_vec());
            }
            RAW.. => {
                (self.is_valid, self.has_raw) = (false, true);
                self.bytes.extend_from_slice(content);
            }
            _ => {
                self.is_valid = false;
                if kind == DATA {
                    self.data.entry(stream.into()).or_default().extend_from_slice(without_padding(flags, content));
                }
                self.frame(kind, flags, stream.into(), content);
            }
        }
    }

    fn begin_call(&mut self, flags: u8, content: &[u8], tokens: &Tokens) {
        let stream = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        self.last_stream = stream;
        let text = String::from_utf8_lossy(content).replace("LOBBY_TOKEN", &tokens.lobby);
        let mut parts = text.split('\0');
        let path = parts.next().unwrap_or_default();
        let usual = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "host.example")];
        let more = [("te", "trailers"), ("content-type", "application/grpc")];
        let mut block = Vec::new();
        for (name, value) in usual.into_iter().chain(more) {
            add_field(&mut block, name, value);
        }
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            add_field(&mut block, name, value);
        }
        self.frame(HEADERS, END_HEADERS | (flags & END_STREAM), stream, &block);
        self.open.push(stream);
        self.end_if_last(flags, stream);
    }

    /// Sends a message on one of the open streams.
    fn message(&mut self, flags: u8, stream: u8, content: &[u8]) {
        let Some(stream) = self.open.get(usize::from(stream) % self.open.len().max(1)).copied() else { return };
        let framed = [&[0][..], &(content.len() as u32).to_be_bytes(), content].concat();
        self.data.entry(stream).or_default().extend_from_slice(&framed);
        self.frame(DATA, flags & END_STREAM, stream, &framed);
        self.end_if_last(flags, stream);
    }

    fn end_if_last(&mut self, flags: u8, stream: u32) {
        if flags & END_STREAM != 0 {
            self.open.retain(|open| *open != stream);
            self.ended.push(stream);
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, content: &[u8]) {
        self.bytes.extend_from_slice(&frame(kind, flags, stream, content));
    }
}

fn without_padding(flags: u8, content: &[u8]) -> &[u8] {
    match content {
        [padding, data @ ..] if flags & PADDED != 0 => &data[..data.len().saturating_sub((*padding).into())],
        _ => content,
    }
}

/// Writes a literal field without an index (RFC 7541, 6.2.2).
fn add_field(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        add_length(block, text.len());
        block.extend_from_slice(text.as_bytes());
    }
}

fn add_length(block: &mut Vec<u8>, length: usize) {
    const PREFIX_MAX: usize = 127;
    if length < PREFIX_MAX {
        return block.push(length as u8);
    }
    block.push(PREFIX_MAX as u8);
    let mut rest = length - PREFIX_MAX;
    while rest > 127 {
        block.push(128 | (rest & 127) as u8);
        rest >>= 7;
    }
    block.push(rest as u8);
}
