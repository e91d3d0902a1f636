//! What an operator reads: lines on standard error.

/// Says something.
pub fn write_line(text: &str) {
    use std::io::Write;
    // One write for a line, so lines of several processes do not mix. Nobody may be listening any more; then there is
    // nobody to tell.
    let _ = std::io::stderr().write_all(format!("edge-guard: {text}\n").as_bytes());
}
