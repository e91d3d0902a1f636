//! A strict reader of the frames that the front sends.

use std::collections::BTreeMap;

use crate::raw_http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RESET, SETTINGS, WINDOW_UPDATE,
};

const HEAD_BYTES: usize = 9;
/// Largest frame that a client takes without a setting.
const FRAME_BYTES_MAX: usize = 16_384;

#[derive(Default)]
pub struct ServerFrames {
    received: Vec<u8>,
    has_begun: bool,
    /// Stream with an unfinished header block.
    unfinished: Option<u32>,
    pub streams: BTreeMap<u32, Stream>,
    pub is_pinged: bool,
    pub is_going_away: bool,
}

#[derive(Default)]
pub struct Stream {
    pub data: Vec<u8>,
    header_blocks: usize,
    /// The stream has its last frame.
    pub has_ended: bool,
    pub is_reset: bool,
}

impl ServerFrames {
    pub fn take(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
        while let Some((head, rest)) = self.received.split_at_checked(HEAD_BYTES) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            assert!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes");
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let Some(content) = rest.get(..length).map(<[u8]>::to_vec) else { return };
            self.received.drain(..HEAD_BYTES + length);
            self.frame(kind, flags, stream, &content);
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, content: &[u8]) {
        assert!(self.has_begun || kind == SETTINGS, "the first frame is {kind}");
        self.has_begun = true;
        assert_eq!(self.unfinished.is_some(), kind == CONTINUATION, "a frame within a header block");
        let is_of_connection = [SETTINGS, PING, GOAWAY].contains(&kind);
        assert!(kind == WINDOW_UPDATE || is_of_connection == (stream == 0), "frame {kind} of stream {stream}");
        match kind {
            SETTINGS | WINDOW_UPDATE => {}
            PING => self.is_pinged |= flags & ACK != 0,
            GOAWAY => self.is_going_away = true,
            RESET => {
                let stream = self.streams.entry(stream).or_default();
                (stream.is_reset, stream.has_ended) = (true, true);
            }
            DATA | HEADERS => {
                let of_stream = self.streams.entry(stream).or_default();
                assert!(!of_stream.has_ended, "frame {kind} after the end of stream {stream}");
                of_stream.header_blocks += usize::from(kind == HEADERS);
                assert!((1..=2).contains(&of_stream.header_blocks));
                of_stream.has_ended = flags & END_STREAM != 0;
                assert!(of_stream.header_blocks < 2 || of_stream.has_ended, "trailers that end no stream");
                if kind == DATA {
                    of_stream.data.extend_from_slice(content);
                } else if flags & END_HEADERS == 0 {
                    self.unfinished = Some(stream);
                }
            }
            CONTINUATION => {
                assert_eq!(self.unfinished, Some(stream));
                self.unfinished = self.unfinished.filter(|_| flags & END_HEADERS == 0);
            }
            _ => panic!("a frame of the unknown type {kind}"),
        }
    }

    pub fn has_ended(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.has_ended)
    }
}
