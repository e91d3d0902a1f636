//! Stardust: players fly over a torus and gather stars, over UDP. What its server and its bot (`bin/`) are made of.
// The fields and constants of a game say themselves what they are.
#![allow(missing_docs)]

pub mod api;
pub mod protocol;
pub mod seats;
pub mod service;
pub mod settings;
pub mod world;

/// A line of the log. A log that nobody takes is no reason to end.
pub fn say(line: &str) {
    let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{line}\n"));
}
