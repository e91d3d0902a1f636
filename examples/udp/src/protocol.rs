//! What is in a datagram. Owns the bytes: nothing else knows where a field is.
//!
//! Every datagram begins with two bytes that say "Stardust, version 1" and one for the kind; numbers are big-endian.
//! What is not exactly as long as its kind says, or has a value that there is not, is no message. A hello has at least
//! `HELLO_BYTES_MIN` bytes, filled up with zeros, so that no answer to somebody unknown is longer than the question.

/// No datagram is longer, either way: it fits every path whole.
pub const DATAGRAM_BYTES_MAX: usize = 512;
/// A hello is at least as long.
pub const HELLO_BYTES_MIN: usize = 64;
/// The longest player token.
pub const TOKEN_BYTES_MAX: usize = 160;
/// Players in one state, the receiver among them; the nearest.
pub const PLAYERS_SEEN_MAX: usize = 40;
/// Stars in one state; the nearest.
pub const STARS_SEEN_MAX: usize = 40;

const MARK: [u8; 2] = [0x5D, 1];

/// What a welcome gives and every later message shows: who it is, wherever it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// The player, for all to see.
    pub id: u16,
    /// Known to this client and the server alone.
    pub secret: u64,
}

/// A point of the torus: both numbers wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// From west to east.
    pub x: u16,
    /// From north to south.
    pub y: u16,
}

/// Why a hello was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Refusal {
    TokenInvalid = 1,
    WrongLobby = 2,
    TokenUsed = 3,
    TokenExpired = 4,
    PlayerRemoved = 5,
    /// The hosting service gave no decision within 10 s.
    Undecided = 6,
    /// Any other word of the service.
    Refused = 7,
    /// As many as can play are here already.
    Full = 8,
}

/// Why the game is over for a player.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Ending {
    ServerStops = 1,
    LobbyEnded = 2,
    Silent = 3,
}

/// From a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said<'a> {
    /// Let me in.
    Hello {
        /// Of the hosting service, with characters that need no quoting anywhere.
        token: &'a str,
    },
    /// Where I want to go. Also the sign of life.
    Input {
        /// Who.
        pass: Pass,
        /// What the last `Path` said; 0 before there was one.
        cookie: u32,
        /// Grows with each input; an older one than the newest is stale.
        seq: u32,
        /// 0 stays, 1 to 8 are north and then clockwise.
        direction: u8,
    },
    /// I am leaving.
    Bye {
        /// Who.
        pass: Pass,
    },
    /// Say this back to me. Anybody may ask.
    Ping {
        /// What comes back.
        payload: &'a [u8],
    },
}

/// From the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told<'a> {
    /// You are in.
    Welcome {
        /// Shown with all that is said from now on.
        pass: Pass,
        /// Time of the world.
        tick: u32,
        /// Time between two states.
        tick_ms: u8,
    },
    /// You are not.
    Refused(Refusal),
    /// The world near you.
    State(State),
    /// It is over.
    Ended(Ending),
    /// You speak from elsewhere: show this with the next input to be followed there.
    Path {
        /// Proves that the new address hears us.
        cookie: u32,
    },
    /// What the ping had.
    Pong {
        /// The same bytes.
        payload: &'a [u8],
    },
}

/// What one player sees of the world.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// Time of the world.
    pub tick: u32,
    /// The newest input that has taken effect.
    pub seq: u32,
    /// Players in the world, seen or not.
    pub here: u16,
    /// Oneself, then others, nearest first.
    pub players: Vec<Player>,
    /// Nearest first.
    pub stars: Vec<Place>,
}

/// A player as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Player {
    pub id: u16,
    pub place: Place,
    pub score: u16,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::TokenInvalid,
        Self::WrongLobby,
        Self::TokenUsed,
        Self::TokenExpired,
        Self::PlayerRemoved,
        Self::Undecided,
        Self::Refused,
        Self::Full,
    ];

    /// By the code of the service's error.
    pub fn of_code(code: &str) -> Self {
        match code {
            "PLAYER_TOKEN_INVALID" => Self::TokenInvalid,
            "PLAYER_TOKEN_WRONG_LOBBY" => Self::WrongLobby,
            "PLAYER_TOKEN_CONSUMED" => Self::TokenUsed,
            "PLAYER_TOKEN_EXPIRED" => Self::TokenExpired,
            "PLAYER_REMOVED" => Self::PlayerRemoved,
            _ => Self::Refused,
        }
    }
}

impl Ending {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ServerStops, Self::LobbyEnded, Self::Silent];
}

impl<'a> Said<'a> {
    /// None: it is no message of this version.
    pub fn read(datagram: &'a [u8]) -> Option<Self> {
        let mut rest = Rest::of(datagram)?;
        let said = match rest.u8()? {
            1 => {
                let length = rest.u8()?.into();
                let token = std::str::from_utf8(rest.bytes(length)?).ok()?;
                let padding = rest.all();
                let is_whole = datagram.len() >= HELLO_BYTES_MIN && padding.iter().all(|byte| *byte == 0);
                (is_whole && is_token(token)).then_some(Self::Hello { token })?
            }
            2 => {
                let (pass, cookie, seq, direction) = (rest.pass()?, rest.u32()?, rest.u32()?, rest.u8()?);
                (direction <= 8).then_some(Self::Input { pass, cookie, seq, direction })?
            }
            3 => Self::Bye { pass: rest.pass()? },
            4 => Self::Ping { payload: rest.all() },
            _ => return None,
        };
        rest.0.is_empty().then_some(said)
    }

    /// Into `out`, in place of what it had.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend(MARK);
        match self {
            Self::Hello { token } => {
                out.extend([1, token.len() as u8]);
                out.extend(token.as_bytes());
                out.resize(out.len().max(HELLO_BYTES_MIN), 0);
            }
            Self::Input { pass, cookie, seq, direction } => {
                out.push(2);
                write_pass(out, *pass);
                out.extend(cookie.to_be_bytes());
                out.extend(seq.to_be_bytes());
                out.push(*direction);
            }
            Self::Bye { pass } => {
                out.push(3);
                write_pass(out, *pass);
            }
            Self::Ping { payload } => {
                out.push(4);
                out.extend(*payload);
            }
        }
    }
}

impl<'a> Told<'a> {
    /// None: it is no message of this version.
    pub fn read(datagram: &'a [u8]) -> Option<Self> {
        let mut rest = Rest::of(datagram)?;
        let told = match rest.u8()? {
            16 => Self::Welcome { pass: rest.pass()?, tick: rest.u32()?, tick_ms: rest.u8()? },
            17 => {
                let number = rest.u8()?;
                Self::Refused(Refusal::ALL.into_iter().find(|one| *one as u8 == number)?)
            }
            18 => Self::State(rest.state()?),
            19 => {
                let number = rest.u8()?;
                Self::Ended(Ending::ALL.into_iter().find(|one| *one as u8 == number)?)
            }
            20 => Self::Path { cookie: rest.u32()? },
            21 => Self::Pong { payload: rest.all() },
            _ => return None,
        };
        rest.0.is_empty().then_some(told)
    }

    /// Into `out`, in place of what it had.
    pub fn write(&self, out: &mut Vec<u8>) {
        if let Self::State(state) = self {
            return state.write_datagram(out);
        }
        out.clear();
        out.extend(MARK);
        match self {
            Self::State(_) => {}
            Self::Welcome { pass, tick, tick_ms } => {
                out.push(16);
                write_pass(out, *pass);
                out.extend(tick.to_be_bytes());
                out.push(*tick_ms);
            }
            Self::Refused(why) => out.extend([17, *why as u8]),
            Self::Ended(why) => out.extend([19, *why as u8]),
            Self::Path { cookie } => {
                out.push(20);
                out.extend(cookie.to_be_bytes());
            }
            Self::Pong { payload } => {
                out.push(21);
                out.extend(*payload);
            }
        }
    }
}

impl State {
    /// As a datagram into `out`, in place of what it had. What is beyond the limits is left out: it is the farthest.
    pub fn write_datagram(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend(MARK);
        let players = &self.players[..self.players.len().min(PLAYERS_SEEN_MAX)];
        let stars = &self.stars[..self.stars.len().min(STARS_SEEN_MAX)];
        out.push(18);
        out.extend(self.tick.to_be_bytes());
        out.extend(self.seq.to_be_bytes());
        out.extend(self.here.to_be_bytes());
        out.extend([players.len() as u8, stars.len() as u8]);
        for player in players {
            for number in [player.id, player.place.x, player.place.y, player.score] {
                out.extend(number.to_be_bytes());
            }
        }
        for star in stars {
            out.extend(star.x.to_be_bytes());
            out.extend(star.y.to_be_bytes());
        }
    }
}

fn write_pass(out: &mut Vec<u8>, pass: Pass) {
    out.extend(pass.id.to_be_bytes());
    out.extend(pass.secret.to_be_bytes());
}

/// What the service's tokens are made of: it needs no quoting in JSON, and there is no end of line in it.
fn is_token(text: &str) -> bool {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
    is_plain && (1..=TOKEN_BYTES_MAX).contains(&text.len())
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn of(datagram: &'a [u8]) -> Option<Self> {
        let is_short = datagram.len() <= DATAGRAM_BYTES_MAX;
        datagram.strip_prefix(&MARK).filter(|_| is_short).map(Self)
    }

    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn all(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn pass(&mut self) -> Option<Pass> {
        Some(Pass { id: self.u16()?, secret: self.array().map(u64::from_be_bytes)? })
    }

    fn place(&mut self) -> Option<Place> {
        Some(Place { x: self.u16()?, y: self.u16()? })
    }

    fn state(&mut self) -> Option<State> {
        let (tick, seq, here) = (self.u32()?, self.u32()?, self.u16()?);
        let (players, stars) = (self.u8()?, self.u8()?);
        let player = |rest: &mut Self| Some(Player { id: rest.u16()?, place: rest.place()?, score: rest.u16()? });
        Some(State {
            tick,
            seq,
            here,
            players: (0..players).map(|_| player(self)).collect::<Option<_>>()?,
            stars: (0..stars).map(|_| self.place()).collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests;
