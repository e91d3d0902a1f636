//! Another process as the owner of a listening socket, which a test can stop while it answers itself.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

pub struct SocketProcess(Child);

impl SocketProcess {
    /// Later clients see the process that listened last.
    pub fn start(listener: &UnixListener) -> SocketProcess {
        let descriptor = listener.as_raw_fd();
        let mut command = Command::new("sleep");
        // SAFETY: listen(2) is safe between fork and exec.
        unsafe {
            command.arg("600").pre_exec(move || match libc::listen(descriptor, 128) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        SocketProcess(command.spawn().unwrap())
    }

    pub fn stop(&self) {
        self.send(libc::SIGSTOP);
    }

    pub fn go_on(&self) {
        self.send(libc::SIGCONT);
    }

    fn send(&self, signal: i32) {
        let pid = i32::try_from(self.0.id()).unwrap();
        // SAFETY: a signal to a child that is not waited for yet.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
}

impl Drop for SocketProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
