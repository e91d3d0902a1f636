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
use crate::figures::Figures;
use crate::flags::Flags;
use crate::host::cpu_ns;
use crate::{Failure, wrong};

const PIECE: usize = 8 << 20;
const COMPARED: usize = 8 * PIECE;
const TAKEN: usize = 1 << 20;

pub fn run(flags: &Flags) -> Result<Figures, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", flags.get("listen", 0)?))?;
    let mut client = TcpStream::connect(flags.text("address")?)?;
    let (server, _) = listener.accept()?;
    let seconds = Duration::from_secs_f64(flags.get("seconds", 4.0)?);
    let bytes = Arc::new(pattern(PIECE, 1));
    let is_enough = Arc::new(AtomicBool::new(false));
    let sending = {
        let (bytes, is_enough) = (bytes.clone(), is_enough.clone());
        thread::spawn(move || send(&server, &bytes, &is_enough))
    };
    compare(&mut client, &bytes)?;
    let (began, cpu_before_ns) = (Instant::now(), cpu_ns());
    let mut taken = 0;
    while began.elapsed() < seconds {
        taken += discard(&client)?;
    }
    let window_s = began.elapsed().as_secs_f64();
    let load_cpu_share = (cpu_ns() - cpu_before_ns) as f64 / (window_s * 1e9);
    is_enough.store(true, Relaxed);
    let mut rest = 0;
    loop {
        match discard(&client)? {
            0 => break,
            count => rest += count,
        }
    }
    let sent = sending.join().map_err(|_| wrong("the sender failed"))??;
    let all = COMPARED + taken + rest;
    if sent != all {
        return Err(wrong(format!("{sent} bytes were sent, {all} came")));
    }
    Ok(Figures::new()
        .number("bytes_per_s", taken as f64 / window_s)
        .number("window_s", window_s)
        .count("bytes", taken as u64)
        .count("compared_bytes", COMPARED as u64)
        .number("load_cpu_share", load_cpu_share))
}

fn send(to: &TcpStream, bytes: &[u8], is_enough: &AtomicBool) -> io::Result<usize> {
    // SAFETY: the name is a C string. A non-negative descriptor is new and has no other owner.
    let mut file = unsafe {
        match libc::memfd_create(c"bytes".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => return Err(io::Error::last_os_error()),
            memory => File::from_raw_fd(memory),
        }
    };
    file.write_all(bytes)?;
    let mut sent = 0;
    while sent < COMPARED || !is_enough.load(Relaxed) {
        let mut from = (sent % PIECE) as libc::off_t;
        // SAFETY: both descriptors are open, and `from` outlives the call.
        let count = unsafe { libc::sendfile(to.as_raw_fd(), file.as_raw_fd(), &raw mut from, PIECE - sent % PIECE) };
        sent += usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    }
    to.shutdown(Shutdown::Write)?;
    Ok(sent)
}

fn compare(from: &mut TcpStream, bytes: &[u8]) -> Result<(), Failure> {
    let mut came = vec![0; TAKEN];
    for piece in 0..COMPARED / TAKEN {
        from.read_exact(&mut came)?;
        let at = piece * TAKEN % PIECE;
        if came != bytes[at..at + TAKEN] {
            return Err(wrong("the bytes were altered"));
        }
    }
    Ok(())
}

fn discard(from: &TcpStream) -> Result<usize, Failure> {
    // SAFETY: with MSG_TRUNC the kernel writes nothing to the buffer, so that null is valid.
    let count = unsafe { libc::recv(from.as_raw_fd(), std::ptr::null_mut(), TAKEN, libc::MSG_TRUNC) };
    Ok(usize::try_from(count).map_err(|_| io::Error::last_os_error())?)
}
