//! `control`: a FIFO that takes commands, one a line. Writers may come and go; half a line waits for its end.

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// SIGTERM now, SIGKILL after so many milliseconds; 0: at once. The soonest of several wins.
    Stop(u64),
    /// For so many milliseconds, tell that the log has grown.
    Follow(u64),
}

const LINE_MAX: usize = 64;

/// Lines from pieces.
#[derive(Default)]
pub struct Commands {
    line: Vec<u8>,
    is_too_long: bool,
}

impl Commands {
    /// Takes a piece; what is no command is nobody's and ignored.
    pub fn take(&mut self, piece: &[u8], mut each: impl FnMut(Command)) {
        for &byte in piece {
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
                each(command);
            }
            self.line.clear();
            self.is_too_long = false;
        }
    }
}

fn parse(line: &[u8]) -> Option<Command> {
    let (word, number) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let ms = number.parse().ok()?;
    match word {
        "stop" => Some(Command::Stop(ms)),
        "follow" => Some(Command::Follow(ms)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_pieces_and_nonsense_is_ignored() {
        let mut commands = Commands::default();
        let mut got = Vec::new();
        let long = vec![b'x'; 10_000];
        for piece in [&b"st"[..], b"op 5", b"00\nfollow 9\nhello\nstop -1\nstop 1 2\n", &long, b"\nstop 0\n"] {
            commands.take(piece, |command| got.push(command));
        }
        assert_eq!(got, [Command::Stop(500), Command::Follow(9), Command::Stop(0)]);
    }
}
