//! System calls of programs: what every isolation refuses, with its error number, and what it allows.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use libc::{EACCES, EPERM, c_int, c_long};

use crate::run_fixture::{Mode, Run, isolating_modes};

const ENOSYS: c_int = libc::ENOSYS;
const SIGCHLD: c_long = libc::SIGCHLD as c_long;

/// A call with its first three arguments, and the error number that it must have.
type Attempt = (String, c_long, [c_long; 3], c_int);

fn without_arguments(calls: &[(&str, c_long)], errno: c_int) -> Vec<Attempt> {
    calls.iter().map(|&(name, number)| (name.to_owned(), number, [0; 3], errno)).collect()
}

/// Returns the table of [forbidden calls](../../../../docs/isolation.md#forbidden-system-calls).
fn forbidden_calls() -> Vec<Attempt> {
    let refused = [
        ("unshare", libc::SYS_unshare),
        ("setns", libc::SYS_setns),
        ("chroot", libc::SYS_chroot),
        ("pivot_root", libc::SYS_pivot_root),
        ("mount", libc::SYS_mount),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("move_mount", libc::SYS_move_mount),
        ("open_tree", libc::SYS_open_tree),
        ("fsconfig", libc::SYS_fsconfig),
        ("fsmount", libc::SYS_fsmount),
        ("fsopen", libc::SYS_fsopen),
        ("fspick", libc::SYS_fspick),
        ("umount2", libc::SYS_umount2),
        ("name_to_handle_at", libc::SYS_name_to_handle_at),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("add_key", libc::SYS_add_key),
        ("keyctl", libc::SYS_keyctl),
        ("request_key", libc::SYS_request_key),
        ("bpf", libc::SYS_bpf),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("io_uring_enter", libc::SYS_io_uring_enter),
        ("io_uring_register", libc::SYS_io_uring_register),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("ptrace", libc::SYS_ptrace),
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("process_vm_writev", libc::SYS_process_vm_writev),
        ("process_madvise", libc::SYS_process_madvise),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("kcmp", libc::SYS_kcmp),
        ("init_module", libc::SYS_init_module),
        ("finit_module", libc::SYS_finit_module),
        ("delete_module", libc::SYS_delete_module),
        ("kexec_load", libc::SYS_kexec_load),
        ("reboot", libc::SYS_reboot),
        ("acct", libc::SYS_acct),
        ("clock_settime", libc::SYS_clock_settime),
        ("settimeofday", libc::SYS_settimeofday),
        ("swapon", libc::SYS_swapon),
        ("swapoff", libc::SYS_swapoff),
        ("sethostname", libc::SYS_sethostname),
        ("setdomainname", libc::SYS_setdomainname),
        ("syslog", libc::SYS_syslog),
        ("vhangup", libc::SYS_vhangup),
        ("quotactl", libc::SYS_quotactl),
        ("quotactl_fd", libc::SYS_quotactl_fd),
        ("fanotify_init", libc::SYS_fanotify_init),
        ("fanotify_mark", libc::SYS_fanotify_mark),
        ("get_mempolicy", libc::SYS_get_mempolicy),
        ("set_mempolicy", libc::SYS_set_mempolicy),
        ("mbind", libc::SYS_mbind),
        ("migrate_pages", libc::SYS_migrate_pages),
        ("move_pages", libc::SYS_move_pages),
    ];
    let unknown = [("clone3", libc::SYS_clone3), ("memfd_secret", libc::SYS_memfd_secret), ("a future call", 1_000)];
    let namespaces = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ];
    let clones = namespaces
        .into_iter()
        .map(|flag| (format!("clone {flag:#x}"), libc::SYS_clone, [c_long::from(flag) | SIGCHLD, 0, 0], EPERM));
    let allowed_families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let families = (0..=libc::AF_VSOCK + 8).filter(|family| !allowed_families.contains(family));
    let sockets =
        families.map(|family| (format!("socket {family}"), libc::SYS_socket, [c_long::from(family), 3, 0], EPERM));
    let netlinks = (1..32).map(|protocol| {
        (format!("socket of netlink {protocol}"), libc::SYS_socket, [libc::AF_NETLINK.into(), 3, protocol], EPERM)
    });
    let personality = ("personality".to_owned(), libc::SYS_personality, [0x004_0000, 0, 0], ENOSYS);
    without_arguments(&refused, EPERM)
        .into_iter()
        .chain(without_arguments(&unknown, ENOSYS))
        .chain(clones.chain(sockets).chain(netlinks))
        .chain([personality])
        .collect()
}

fn forbidden_calls_under_landlock() -> Vec<Attempt> {
    let socket = |name: &str, family, kind| (name.to_owned(), libc::SYS_socket, [family, kind, 0], EACCES);
    let pair = |kind| (format!("socketpair {kind}"), libc::SYS_socketpair, [1, kind, 0], EACCES);
    let flags = c_long::from(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let mut attempts = vec![socket("socket 1", 1, 1), socket("socket 1 with high bits", 1 << 32 | 1, 1)];
    attempts.extend([2, 3, 4, 2 | flags].map(pair));
    attempts.push(("prlimit64 of another process".to_owned(), libc::SYS_prlimit64, [1, 0, 1], EACCES));
    attempts
}

/// Prints `name=errno` for each attempt, with errno 0 if the call succeeds.
fn script(attempts: &[Attempt]) -> String {
    let mut script = "$| = 1;\n".to_owned();
    for (name, number, [first, second, third], _) in attempts {
        script += &format!(
            "print '{name}=', syscall({number}, {first}, {second}, {third}, 0, 0) < 0 ? $! + 0 : 0, qq(\\n);\n"
        );
    }
    script
}

fn run_of(mode: Mode, script: &str) -> Run {
    let run = Run::new(mode, "exec perl calls", &[]);
    fs::write(run.path("scratch/calls"), script).expect("program");
    fs::set_permissions(run.path("scratch/calls"), fs::Permissions::from_mode(0o644)).expect("mode");
    run.started()
}

#[test]
fn forbidden_calls_have_their_documented_error() {
    for mode in isolating_modes() {
        let mut attempts = forbidden_calls();
        if mode.isolation == "landlock" {
            attempts.extend(forbidden_calls_under_landlock());
        }
        let run = run_of(mode, &script(&attempts));
        let state = run.wait_ended();
        let expected: Vec<String> = attempts.iter().map(|(name, .., errno)| format!("{name}={errno}")).collect();
        assert_eq!(run.stdout_lines(), expected, "{mode:?}: {state:?}");
    }
}

#[test]
fn allowed_calls_of_network_and_threads_work() {
    let family = |family: c_int, kind: c_int| (family.into(), kind.into());
    let families: [(c_long, c_long); 4] = [
        family(1, 2),
        family(libc::AF_INET, libc::SOCK_DGRAM),
        family(libc::AF_INET6, libc::SOCK_STREAM),
        family(16, 3),
    ];
    for mode in isolating_modes() {
        let families = families.iter().filter(|(family, _)| mode.isolation != "landlock" || *family != 1);
        let mut attempts: Vec<Attempt> = families
            .map(|&(family, kind)| (format!("socket {family}"), libc::SYS_socket, [family, kind, 0], 0))
            .collect();
        attempts.push(("prlimit64".to_owned(), libc::SYS_prlimit64, [0, 7, 0], 0));
        attempts.push(("personality".to_owned(), libc::SYS_personality, [0xffff_ffff, 0, 0], 0));
        let run = run_of(mode, &script(&attempts));
        let state = run.wait_ended();
        let expected: Vec<String> = attempts.iter().map(|(name, ..)| format!("{name}=0")).collect();
        assert_eq!(run.stdout_lines(), expected, "{mode:?}: {state:?}");
    }
}
