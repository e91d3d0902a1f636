//! Network isolation of a run: BPF programs on its control group of version 2.
//!
//! The programs belong to the group. They apply to each process in it, also after the end of the keeper, and end with
//! the group. A packet of a player takes no further step on its way, and the network of the machine stays unchanged.

mod assembler;
mod bpf;
mod programs;
mod rules;
mod socket_code;
mod socket_limits;
mod socket_sets;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use bpf::call;
use programs::Program;
pub use rules::{NetworkRules, parse_ports};
use socket_sets::SocketSets;

const LICENSE: &CStr = c"Apache-2.0";
const PROGRAM_LOAD: libc::c_int = 5;
const PROGRAM_ATTACH: libc::c_int = 8;
/// Attach flag: programs of a group below do not replace the program.
const ALLOW_MULTI: u32 = 2;
/// Port that no run has, because only root may bind it.
const FOREIGN_PORT: u16 = 1;

impl NetworkRules {
    /// Attaches the programs to the control group of the run.
    pub fn apply(&self) -> io::Result<()> {
        let Some(path) = &self.group else { return Ok(()) };
        let group = File::open(path)?;
        let sets = SocketSets::create(self)?;
        for program in programs::all(self, &sets) {
            attach(&load(&program)?, &group, program.attachment)?;
        }
        Ok(())
    }
}

/// Tests in a process of the group that the kernel enforces the rules. It does not if the process is in another group.
pub fn check_enforced() -> io::Result<()> {
    match TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, FOREIGN_PORT)) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        _ => Err(io::Error::other("the kernel does not apply the rules")),
    }
}

/// Start of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct LoadRequest {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attachment: u32,
}

/// Start of `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
struct AttachRequest {
    target: u32,
    program: u32,
    attachment: u32,
    flags: u32,
}

fn load(program: &Program) -> io::Result<OwnedFd> {
    let mut request = LoadRequest {
        kind: program.kind,
        instruction_count: program.code.len() as u32,
        instructions: program.code.as_ptr().expose_provenance() as u64,
        license: LICENSE.as_ptr().expose_provenance() as u64,
        expected_attachment: program.attachment,
        ..LoadRequest::default()
    };
    request.name[..program.name.len()].copy_from_slice(program.name.as_bytes());
    let descriptor = call(PROGRAM_LOAD, &request)?;
    // SAFETY: the kernel has just created the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn attach(program: &OwnedFd, group: &File, attachment: u32) -> io::Result<()> {
    let request = AttachRequest {
        target: group.as_raw_fd() as u32,
        program: program.as_raw_fd() as u32,
        attachment,
        flags: ALLOW_MULTI,
    };
    call(PROGRAM_ATTACH, &request).map(drop)
}
