//! The datagrams of the game. README.md lists them.

use std::io::Cursor;

use binrw::helpers::until_eof;
use binrw::meta::{ReadEndian, WriteEndian};
use binrw::{BinRead, BinWrite, binrw};

/// Datagrams of this size fit the MTU of every network path.
pub const DATAGRAM_MAX: usize = 512;

/// Reasons to reject a hello. `service::refusal` has further reasons.
pub const REFUSAL_TOKEN_INVALID: u8 = 1;
pub const REFUSAL_TOKEN_USED: u8 = 3;
pub const REFUSAL_UNDECIDED: u8 = 6;
pub const REFUSAL_FULL: u8 = 8;

pub const END_SERVER_STOPS: u8 = 1;
pub const END_LOBBY_ENDED: u8 = 2;
pub const END_SILENT: u8 = 3;

#[binrw]
#[derive(Debug, PartialEq)]
#[brw(big, magic = b"\x5d\x01")]
pub enum ClientMessage {
    /// A hello has at least 64 bytes, so that no answer is longer than the hello.
    #[brw(magic = 1_u8)]
    Hello {
        #[br(temp)]
        #[bw(calc = token.len() as u8)]
        length: u8,
        #[br(count = length, try_map = String::from_utf8)]
        #[bw(map = |token| token.as_bytes())]
        #[brw(pad_size_to = 60)]
        token: String,
    },
    /// An input also shows that the client is alive. `cookie` is from the last `Path`.
    #[brw(magic = 2_u8)]
    Input { pass: SessionPass, cookie: u32, seq: u32, direction: u8 },
    #[brw(magic = 3_u8)]
    Bye(SessionPass),
    #[brw(magic = 4_u8)]
    Ping(#[br(parse_with = until_eof)] Vec<u8>),
}

#[binrw]
#[derive(Debug, PartialEq)]
#[brw(big, magic = b"\x5d\x01")]
pub enum ServerMessage {
    #[brw(magic = 16_u8)]
    Welcome { pass: SessionPass, tick: u32, tick_ms: u8 },
    #[brw(magic = 17_u8)]
    Refused(u8),
    /// The own player, then other players, and stars, nearest first. `player_total` counts all players of the game.
    #[brw(magic = 18_u8)]
    State {
        tick: u32,
        seq: u32,
        player_total: u16,
        #[br(temp)]
        #[bw(calc = players.len() as u8)]
        player_count: u8,
        #[br(temp)]
        #[bw(calc = stars.len() as u8)]
        star_count: u8,
        #[br(count = player_count)]
        players: Vec<Player>,
        #[br(count = star_count)]
        stars: Vec<Position>,
    },
    #[brw(magic = 19_u8)]
    Ended(u8),
    /// Answer to an input from a new address. The session moves with the next input that has this cookie.
    #[brw(magic = 20_u8)]
    Path(u32),
    #[brw(magic = 21_u8)]
    Pong(#[br(parse_with = until_eof)] Vec<u8>),
}

/// Identifies a session. Only the client and the server know the `secret`.
#[binrw]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SessionPass {
    pub id: u16,
    pub secret: u64,
}

#[binrw]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Player {
    pub id: u16,
    pub position: Position,
    pub score: u16,
}

/// Position from west to east and from north to south.
pub type Position = (u16, u16);

pub fn read<T: for<'a> BinRead<Args<'a> = ()> + ReadEndian>(datagram: &[u8]) -> Option<T> {
    let mut cursor = Cursor::new(datagram);
    let message = T::read(&mut cursor).ok()?;
    (cursor.position() == datagram.len() as u64 && datagram.len() <= DATAGRAM_MAX).then_some(message)
}

pub fn write<T: for<'a> BinWrite<Args<'a> = ()> + WriteEndian>(message: &T) -> Vec<u8> {
    let mut out = Cursor::new(Vec::new());
    let _ = message.write(&mut out);
    out.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASS: SessionPass = SessionPass { id: 7, secret: 8 };

    #[test]
    fn messages_round_trip_and_other_lengths_are_rejected() {
        let hello = |length| ClientMessage::Hello { token: "t".repeat(length) };
        let input = ClientMessage::Input { pass: PASS, cookie: 9, seq: 4_000_000_000, direction: 8 };
        for message in [hello(1), hello(60), hello(61), hello(160), input, ClientMessage::Bye(PASS)] {
            let datagram = write(&message);
            assert!(
                (0..datagram.len()).all(|length| read::<ClientMessage>(&datagram[..length]).is_none()),
                "{message:?}"
            );
            assert_eq!(read::<ClientMessage>(&[&datagram[..], &[0]].concat()), None);
            assert_eq!(read(&datagram), Some(message));
        }
        let player = Player { id: 3, position: (65_535, 1), score: 12 };
        let state = ServerMessage::State {
            tick: 8,
            seq: 9,
            player_total: 40,
            players: vec![player; 3],
            stars: vec![(5, 6); 5],
        };
        let welcome = ServerMessage::Welcome { pass: PASS, tick: 77, tick_ms: 50 };
        for message in [
            state,
            welcome,
            ServerMessage::Refused(REFUSAL_FULL),
            ServerMessage::Ended(END_SILENT),
            ServerMessage::Path(9),
            ServerMessage::Pong(vec![1]),
        ] {
            assert_eq!(read(&write(&message)), Some(message));
        }
    }

    #[test]
    fn responses_are_no_longer_than_requests() {
        let hello = write(&ClientMessage::Hello { token: "t".to_owned() });
        let welcome = ServerMessage::Welcome { pass: PASS, tick: 1, tick_ms: 50 };
        assert!(hello.len() == 64 && write(&welcome).len() <= 64 && write(&ServerMessage::Refused(1)).len() <= 64);
        let input = ClientMessage::Input { pass: PASS, cookie: 0, seq: 1, direction: 1 };
        assert!(write(&ServerMessage::Path(1)).len() <= write(&input).len());
        assert_eq!(read::<ClientMessage>(&write(&ClientMessage::Ping(vec![0; DATAGRAM_MAX]))), None);
    }

    #[test]
    fn random_bytes_never_panic() {
        for _ in 0..20_000 {
            let mut noise: Vec<u8> = (0..rand::random_range(3..600)).map(|_| rand::random()).collect();
            noise[..3].copy_from_slice(&[0x5D, 1, rand::random_range(0..24)]);
            let _ = (read::<ClientMessage>(&noise), read::<ServerMessage>(&noise));
        }
    }
}
