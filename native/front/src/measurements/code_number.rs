//! Numbers of the codes of responses, for counting.

use hosting_matchmaker::Code;
use hosting_matchmaker::contract::ERRORS;

/// Number of a request that was answered without an error.
pub const OK: usize = 0;
/// Number of a request without a response, because its client disconnected.
pub const CANCELLED: usize = ERRORS.len() + 1;
/// Count of all numbers.
pub const COUNT: usize = ERRORS.len() + 2;

pub fn of(code: Code) -> usize {
    code as usize + 1
}

/// Returns the number of a code by its name, or None for an unknown name.
pub fn of_name(name: &str) -> Option<usize> {
    ERRORS.iter().position(|row| row.slug == name).map(|code| code + 1)
}

/// Returns the names of all numbers, in their order.
pub fn names() -> impl Iterator<Item = &'static str> {
    ["OK"].into_iter().chain(ERRORS.iter().map(|row| row.slug)).chain(["CANCELLED"])
}
