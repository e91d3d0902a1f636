//! `control`: FIFO that takes one command per line from any number of writers.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlCommand {
    /// Sends SIGTERM to the program now, and SIGKILL after this many milliseconds.
    ///
    /// With several `Stop` commands, the earliest SIGKILL applies.
    Stop(u64),
    /// Notifies the service of new log lines for this many milliseconds.
    Follow(u64),
    /// Adds a line of the service to the log.
    Log(String),
}

/// A longer line is not atomic in a FIFO.
const LINE_MAX: usize = libc::PIPE_BUF;

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
    let (word, argument) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    match word {
        "stop" => argument.parse().ok().map(ControlCommand::Stop),
        "follow" => argument.parse().ok().map(ControlCommand::Follow),
        "log" => Some(ControlCommand::Log(argument.to_owned())),
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
        let log = b"log \xff\nlog Nothing listens.\n";
        for chunk in [&b"st"[..], b"op 5", b"00\nfollow 9\nhello\nstop -1\nstop 1 2\n", &long, b"\nstop 0\n", log] {
            commands.take(chunk, |command| parsed.push(command));
        }
        let log = ControlCommand::Log("Nothing listens.".to_owned());
        assert_eq!(parsed, [ControlCommand::Stop(500), ControlCommand::Follow(9), ControlCommand::Stop(0), log]);
    }
}
