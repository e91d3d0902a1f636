//! Seccomp filters of programs. `build.rs` compiles them from the profiles.
//!
//! The profile of all game servers is a list of allowed calls, `pyservice/runtime/seccomp_profile.json`. Under Landlock,
//! a second profile refuses calls that Landlock has no rule for, `landlock_seccomp_profile.json`. The mode of a Unix
//! socket's file decides which users can connect. If the keeper is not root, the program has the user of the service.
//! So the second profile refuses Unix sockets. It also refuses pairs of datagram sockets, which can send to any path.
//!
//! The process that reads an uploaded build also has the profile `build_seccomp_profile.json`. It refuses sockets, new
//! processes, and every effect on other processes.
//!
//! A filter kills a program that makes system calls of another architecture. If the calls only failed, `exit` would
//! fail too.

use seccompiler::{apply_filter, sock_filter};

mod filters {
    use super::sock_filter;

    include!(concat!(env!("OUT_DIR"), "/seccomp_filters.rs"));
}

/// Installs the filters for this process and its descendants. Also sets `no_new_privs`.
pub fn install_filters(is_landlocked: bool) -> Result<(), String> {
    install(if is_landlocked { filters::LANDLOCK_PROFILE } else { &[] })
}

/// Installs the filters of a build worker for this process and its descendants. Also sets `no_new_privs`.
pub fn install_build_filters() -> Result<(), String> {
    install(filters::BUILD_PROFILE)
}

fn install(more: &[&[sock_filter]]) -> Result<(), String> {
    if filters::PROFILE.is_empty() {
        return Err("system calls cannot be refused on this machine".to_owned());
    }
    for filter in filters::PROFILE.iter().chain(more) {
        apply_filter(filter).map_err(|error| error.to_string())?;
    }
    Ok(())
}
