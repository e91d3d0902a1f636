//! Commands and answers as plain values.

use hosting_core::{EndReason, HoldId, Id, Ms, Port, Refusal, Source};

#[derive(Clone, Debug)]
pub struct AttachArgs {
    pub id: Id,
    pub namespace: Id,
    pub version: Id,
    pub mode: String,
    pub region: String,
    pub tags: Vec<(String, String)>,
    pub limits: [u32; 3],
    pub ttl_ms: Ms,
    pub heartbeat_timeout_ms: Ms,
    pub heartbeat_grace_ms: Ms,
    pub is_join_enabled: bool,
    pub ports: Vec<Port>,
    pub create_ts_ms: u64,
    pub lobby_count_max: u32,
}

#[derive(Clone, Debug)]
pub struct FindArgs {
    pub namespace: Id,
    pub version: Id,
    pub modes: Vec<String>,
    pub regions: Vec<String>,
    pub tags: Vec<(String, String)>,
    pub party_size: u32,
    pub source: Source,
    pub source_limit: u32,
    pub creation: CreationArgs,
}

#[derive(Clone, Debug)]
pub struct TemplateArgs {
    pub lobby: AttachArgs,
    pub is_public: bool,
}

#[derive(Clone, Debug)]
pub enum CreationArgs {
    Prevented,
    Impossible { lobby_count_max: u32 },
    Possible(Box<TemplateArgs>),
}

#[derive(Clone, Debug)]
pub struct CreateArgs {
    pub namespace: Id,
    pub party_size: u32,
    pub source: Source,
    pub source_limit: u32,
    pub creation: CreationArgs,
}

#[derive(Clone, Debug)]
pub struct JoinArgs {
    pub namespace: Id,
    pub lobby: Id,
    pub party_size: u32,
    pub rejoin_token: Option<String>,
    pub source: Source,
    pub source_limit: u32,
}

pub type KeyNumber = Option<u8>;

#[derive(Clone, Debug)]
pub enum Command {
    Attach(AttachArgs, KeyNumber),
    Ready { lobby: Id },
    Find(FindArgs, KeyNumber),
    Create(CreateArgs, KeyNumber),
    Join(JoinArgs, KeyNumber),
    ReleaseHold { hold: HoldId },
    Connected { lobby: Id, token: String, key: KeyNumber },
    Disconnected { lobby: Id, token: String, hold_ms: Option<u64>, key: KeyNumber },
    SetClosed { lobby: Id, is_closed: bool },
    SetState { lobby: Id, state: Vec<u8> },
    State { namespace: Id, lobby: Id, caller: Option<Id> },
    Heartbeat { lobby: Id, tokens: Option<Vec<String>> },
    Detach { namespace: Id, lobby: Id },
    Stop { lobby: Id, only_if_idle: bool },
    End { lobby: Id, reason: EndReason },
    Advance,
}

impl Command {
    pub fn name(&self) -> &'static str {
        match self {
            Command::Attach(..) => "attach",
            Command::Ready { .. } => "ready",
            Command::Find(..) => "find",
            Command::Create(..) => "create",
            Command::Join(..) => "join",
            Command::ReleaseHold { .. } => "release_hold",
            Command::Connected { .. } => "connected",
            Command::Disconnected { .. } => "disconnected",
            Command::SetClosed { .. } => "set_closed",
            Command::SetState { .. } => "set_state",
            Command::State { .. } => "state",
            Command::Heartbeat { .. } => "heartbeat",
            Command::Detach { .. } => "detach",
            Command::Stop { .. } => "stop",
            Command::End { .. } => "end",
            Command::Advance => "advance",
        }
    }

    pub fn key(&self) -> KeyNumber {
        match self {
            Command::Attach(_, key) | Command::Find(_, key) | Command::Join(_, key) => *key,
            Command::Create(_, key) => *key,
            Command::Connected { key, .. } | Command::Disconnected { key, .. } => *key,
            _ => None,
        }
    }

    pub fn lobby_to_be(&mut self) -> Option<&mut AttachArgs> {
        let creation = match self {
            Command::Attach(args, _) => return Some(args),
            Command::Find(args, _) => &mut args.creation,
            Command::Create(args, _) => &mut args.creation,
            _ => return None,
        };
        if let CreationArgs::Possible(template) = creation { Some(&mut template.lobby) } else { None }
    }

    pub fn player_token(&self) -> Option<&String> {
        match self {
            Command::Connected { token, .. } | Command::Disconnected { token, .. } => Some(token),
            Command::Join(args, _) => args.rejoin_token.as_ref(),
            _ => None,
        }
    }

    pub fn leaves_the_reserve(&self) -> bool {
        let takes_slots = matches!(self, Command::Attach(..) | Command::Find(..) | Command::Join(..));
        takes_slots || matches!(self, Command::Create(..) | Command::Ready { .. } | Command::SetState { .. })
    }

    pub fn is_free_of_credit(&self) -> bool {
        matches!(self, Command::State { .. } | Command::ReleaseHold { .. } | Command::Advance)
    }

    pub fn message(&self) -> u128 {
        let mut text = self.clone();
        match &mut text {
            Command::Attach(args, key) => {
                (args.id, args.create_ts_ms, args.lobby_count_max, *key) = (Id::default(), 0, 0, None);
            }
            Command::Find(args, key) => (args.source_limit, args.creation, *key) = (0, CreationArgs::Prevented, None),
            Command::Create(args, key) => (args.source_limit, args.creation, *key) = (0, CreationArgs::Prevented, None),
            Command::Join(args, key) => (args.source_limit, *key) = (0, None),
            Command::Connected { key, .. } | Command::Disconnected { key, .. } => *key = None,
            _ => {}
        }
        format!("{text:?}").bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Attached { lobby: Id, lobby_token: String },
    Reserved { lobby: Id, tokens: Vec<String> },
    Hold(HoldId),
    Made { hold: HoldId, lobby: Id, lobby_token: String },
    Done,
    Removed(bool),
    State(Option<Vec<u8>>),
    Refused(Refusal),
}
