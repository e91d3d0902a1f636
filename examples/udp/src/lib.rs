//! Stardust: a game over UDP in which players gather stars.
// The names of fields and constants describe them.
#![allow(missing_docs)]

pub mod api;
pub mod protocol;
pub mod service;
pub mod sessions;
pub mod settings;
pub mod world;

/// Writes a line to the log. Ignores errors, so that a closed log does not end the game.
pub fn log_line(line: &str) {
    let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{line}\n"));
}
