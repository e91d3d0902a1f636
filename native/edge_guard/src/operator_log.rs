//! Log lines for operators, on standard error.

pub fn write_line(text: &str) {
    use std::io::Write;
    // One write for each line: lines of several processes do not mix.
    let _ = std::io::stderr().write_all(format!("edge-guard: {text}\n").as_bytes());
}
