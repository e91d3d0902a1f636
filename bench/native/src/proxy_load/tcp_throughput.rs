//! TCP throughput of one connection, from the server behind the proxy to the client, both in this process.
//!
//! `stream --address HOST:PORT --listen PORT --seconds S` compares the first 64 MiB byte by byte. Afterwards both sides
//! only count bytes (sendfile(2), MSG_TRUNC), so that the proxy is the bottleneck.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::pattern;
use crate::flags::Flags;
use crate::host_measurements::cpu_ns;
use crate::measurement::Measurement;
use crate::{Failure, failure};

const PATTERN_BYTES: usize = 8 << 20;
const COMPARED_BYTES: usize = 8 * PATTERN_BYTES;
const READ_BYTES: usize = 1 << 20;

pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", flags.get("listen", 0)?))?;
    let mut client = TcpStream::connect(flags.text("address")?)?;
    let (server, _) = listener.accept()?;
    let seconds = Duration::from_secs_f64(flags.get("seconds", 4.0)?);
    let bytes = Arc::new(pattern(PATTERN_BYTES, 1));
    let is_stopped = Arc::new(AtomicBool::new(false));
    let sender = {
        let (bytes, is_stopped) = (bytes.clone(), is_stopped.clone());
        thread::spawn(move || send(&server, &bytes, &is_stopped))
    };
    compare(&mut client, &bytes)?;
    let (started, cpu_before_ns) = (Instant::now(), cpu_ns());
    let mut measured_bytes = 0;
    while started.elapsed() < seconds {
        measured_bytes += discard(&client)?;
    }
    let window_s = started.elapsed().as_secs_f64();
    let load_cpu_share = (cpu_ns() - cpu_before_ns) as f64 / (window_s * 1e9);
    is_stopped.store(true, Relaxed);
    let mut remaining_bytes = 0;
    loop {
        match discard(&client)? {
            0 => break,
            count => remaining_bytes += count,
        }
    }
    let sent = sender.join().map_err(|_| failure("the sender failed"))??;
    let received_bytes = COMPARED_BYTES + measured_bytes + remaining_bytes;
    if sent != received_bytes {
        return Err(failure(format!("{sent} bytes were sent, {received_bytes} came")));
    }
    Ok(Measurement::new()
        .number("bytes_per_s", measured_bytes as f64 / window_s)
        .number("window_s", window_s)
        .count("bytes", measured_bytes as u64)
        .count("compared_bytes", COMPARED_BYTES as u64)
        .number("load_cpu_share", load_cpu_share))
}

fn send(to: &TcpStream, bytes: &[u8], is_stopped: &AtomicBool) -> io::Result<usize> {
    // SAFETY: the name is a C string. A non-negative descriptor is new and has no other owner.
    let mut file = unsafe {
        match libc::memfd_create(c"bytes".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => return Err(io::Error::last_os_error()),
            memory => File::from_raw_fd(memory),
        }
    };
    file.write_all(bytes)?;
    let mut sent = 0;
    while sent < COMPARED_BYTES || !is_stopped.load(Relaxed) {
        let mut from = (sent % PATTERN_BYTES) as libc::off_t;
        // SAFETY: both descriptors are open, and `from` outlives the call.
        let count = unsafe {
            libc::sendfile(to.as_raw_fd(), file.as_raw_fd(), &raw mut from, PATTERN_BYTES - sent % PATTERN_BYTES)
        };
        sent += usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    }
    to.shutdown(Shutdown::Write)?;
    Ok(sent)
}

fn compare(from: &mut TcpStream, bytes: &[u8]) -> Result<(), Failure> {
    let mut received = vec![0; READ_BYTES];
    for piece in 0..COMPARED_BYTES / READ_BYTES {
        from.read_exact(&mut received)?;
        let at = piece * READ_BYTES % PATTERN_BYTES;
        if received != bytes[at..at + READ_BYTES] {
            return Err(failure("the bytes were altered"));
        }
    }
    Ok(())
}

fn discard(from: &TcpStream) -> Result<usize, Failure> {
    // SAFETY: with MSG_TRUNC the kernel writes nothing to the buffer, so that null is valid.
    let count = unsafe { libc::recv(from.as_raw_fd(), std::ptr::null_mut(), READ_BYTES, libc::MSG_TRUNC) };
    Ok(usize::try_from(count).map_err(|_| io::Error::last_os_error())?)
}
