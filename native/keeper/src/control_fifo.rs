//! `control`: FIFO that takes one command per line from any number of writers.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlCommand {
    /// Sends SIGTERM to the program now, and SIGKILL after this many milliseconds.
    ///
    /// With several `Stop` commands, the earliest SIGKILL applies.
    Stop(u64),
    /// Notifies the service of new log lines for this many milliseconds.
    Follow(u64),
}

const LINE_MAX: usize = 64;

#[derive(Default)]
pub struct CommandReader {
    line: Vec<u8>,
    is_too_long: bool,
}

impl CommandReader {
    pub fn take(&mut self, chunk: &[u8], mut handle: impl FnMut(ControlCommand)) {
        for &byte in chunk {
            if byte != b'\n' {
                self.is_too_long |= self.line.len() == LINE_MAX;
                if !self.is_too_long {
                    self.line.push(byte);
                }
                continue;
            }
            if !self.is_too_long
                && let Some(command) = parse(&self.line)
            {
                handle(command);
            }
            self.line.clear();
            self.is_too_long = false;
        }
    }
}

fn parse(line: &[u8]) -> Option<ControlCommand> {
    let (word, number) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let ms = number.parse().ok()?;
    match word {
        "stop" => Some(ControlCommand::Stop(ms)),
        "follow" => Some(ControlCommand::Follow(ms)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunked_commands_are_parsed_and_invalid_lines_ignored() {
        let mut commands = CommandReader::default();
        let mut parsed = Vec::new();
        let long = vec![b'x'; 10_000];
        for chunk in [&b"st"[..], b"op 5", b"00\nfollow 9\nhello\nstop -1\nstop 1 2\n", &long, b"\nstop 0\n"] {
            commands.take(chunk, |command| parsed.push(command));
        }
        assert_eq!(parsed, [ControlCommand::Stop(500), ControlCommand::Follow(9), ControlCommand::Stop(0)]);
    }
}
