//! Stage of one direction of a relay, and the buffer that all relays of a thread share.

use std::cell::RefCell;
use std::io;

const BUFFER_BYTES: usize = 65_536;

pub const STEPS_PER_POLL: usize = 32;

thread_local! {
    pub static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into_boxed_slice());
}

#[derive(Default, PartialEq, Eq)]
pub enum Stage {
    #[default]
    Open,
    Closing,
    Closed,
}

pub fn ignore_not_connected(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotConnected { Ok(()) } else { Err(error) }
}
