//! Errors of the isolation of a program.

use std::path::Path;

#[derive(Debug)]
pub struct ExecError(pub String);

pub fn failure(subject: impl AsRef<Path>, error: impl std::fmt::Display) -> ExecError {
    ExecError(format!("isolation: {}: {error}", subject.as_ref().display()))
}
