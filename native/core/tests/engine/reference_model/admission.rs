//! The model's answers to attach, find and join.

use hosting_core::{Id, Refusal};

use super::commands::{AttachArgs, CreationArgs, FindArgs, JoinArgs};
use super::decisions::{Decision, TokenReading, Verdict, Wait, refuse};
use super::model_state::{Lobby, Model, Stage};

impl Model {
    pub fn decide_attach(&self, args: &AttachArgs) -> Decision {
        let live = self.live_lobbies(args.namespace).count() as u32;
        let fits = live < args.lobby_count_max;
        let decision = if fits {
            Decision::new(Verdict::NewLobby(args.id), Wait::Lobby(self.lobbies.len()), "attached")
        } else {
            refuse(Refusal::TooManyLobbies, Wait::Shard)
        };
        // The engine may not have ended an overdue lobby of the namespace yet.
        if fits && self.namespace_has_overdue(args.namespace) { decision.or(Refusal::TooManyLobbies) } else { decision }
    }

    pub fn decide_find(&self, args: &FindArgs) -> Decision {
        if self.is_over_source_limit(args.namespace, args.source, args.source_limit, args.party_size, 0) {
            return refuse(Refusal::TooManyPlayersFromSource, Wait::Shard);
        }
        for region in &args.regions {
            for is_ready in [true, false] {
                if let Some(lobby) = self.fullest(args, region, is_ready) {
                    return if is_ready {
                        let slots = Verdict::NewSlots { lobby, size: args.party_size };
                        Decision::new(slots, Wait::Lobby(lobby), "reserved")
                    } else {
                        Decision::new(Verdict::NewHold { lobby }, Wait::Any, "held")
                    };
                }
            }
        }
        self.decide_making(args.namespace, &args.creation, (0, args.party_size), Refusal::NoAvailableLobbies)
    }

    fn fullest(&self, args: &FindArgs, region: &str, is_ready: bool) -> Option<usize> {
        let mut best: Option<(u32, usize)> = None;
        for (index, lobby) in self.findable(args).filter(|(_, lobby)| lobby.region == region) {
            if lobby.is_ready != is_ready {
                continue;
            }
            let players = self.players(index);
            if players + args.party_size > lobby.limits[0] {
                continue;
            }
            let free = lobby.limits[0] - players;
            if best.is_none_or(|(least, _)| free < least) {
                best = Some((free, index));
            }
        }
        best.map(|(_, index)| index)
    }

    fn findable<'a>(&'a self, args: &'a FindArgs) -> impl Iterator<Item = (usize, &'a Lobby)> {
        self.live_lobbies(args.namespace).filter(|(_, lobby)| {
            lobby.is_public
                && lobby.version == args.version
                && !lobby.is_closed
                && !lobby.is_stopping
                && !lobby.is_silent(self.now)
                && args.modes.contains(&lobby.mode)
                && lobby.has_tags(&args.tags)
        })
    }

    pub fn depends_on_counts(&self, args: &FindArgs) -> bool {
        let is_making = matches!(args.creation, CreationArgs::Possible(_));
        self.findable(args).filter(|(_, lobby)| args.regions.contains(&lobby.region)).count() > usize::from(!is_making)
    }

    pub fn is_over_source_limit(&self, namespace: Id, source: u64, limit: u32, size: u32, own: u32) -> bool {
        source != 0 && self.players_of(namespace, source) - own + size > limit
    }

    pub fn decide_join(&self, args: &JoinArgs) -> Decision {
        let asking = self.lobby_index(args.lobby).unwrap_or(usize::MAX);
        match args.rejoin_token.as_ref().map(|token| self.see(asking, token)) {
            Some(TokenReading::Forged) => return refuse(Refusal::PlayerTokenInvalid, Wait::Any),
            Some(TokenReading::OtherLobby) => return refuse(Refusal::PlayerTokenWrongLobby, Wait::Any),
            _ => {}
        }
        let Some(index) = self.lobby_index(args.lobby).filter(|i| self.lobbies[*i].namespace == args.namespace) else {
            return refuse(Refusal::LobbyNotFound, Wait::Any);
        };
        let lobby = &self.lobbies[index];
        if self.is_forgotten(index) {
            let unknown = refuse(Refusal::LobbyNotFound, Wait::Any);
            return if self.is_perhaps_known(index) { unknown.or(Refusal::LobbyStopped) } else { unknown };
        }
        if !lobby.is_live() {
            return refuse(Refusal::LobbyStopped, Wait::Lobby(index));
        }
        if !lobby.is_join_enabled {
            return refuse(Refusal::JoinDisabled, Wait::Lobby(index));
        }
        if lobby.is_stopping {
            return refuse(Refusal::LobbyDraining, Wait::Lobby(index));
        }
        let Some(token) = &args.rejoin_token else {
            return self.decide_new_slot(args, index);
        };
        match self.see(index, token) {
            TokenReading::OwnUse(old) => match self.uses[old].stage {
                Stage::Kept { .. } => self.decide_same_slot(args, old, "kept slot again"),
                Stage::Reserved { .. } => self.decide_same_slot(args, old, "reserved anew"),
                _ => self.decide_new_slot(args, index),
            },
            _ => refuse(Refusal::PlayerTokenInvalid, Wait::Any),
        }
    }

    pub fn decide_same_slot(&self, args: &JoinArgs, old: usize, label: &'static str) -> Decision {
        let own = u32::from(args.source != 0 && self.uses[old].source == args.source);
        if self.is_over_source_limit(args.namespace, args.source, args.source_limit, 1, own) {
            return refuse(Refusal::TooManyPlayersFromSource, Wait::Shard);
        }
        Decision::new(Verdict::SamePlace { old }, Wait::Lobby(self.uses[old].lobby), label)
    }

    pub fn decide_new_slot(&self, args: &JoinArgs, index: usize) -> Decision {
        let lobby = &self.lobbies[index];
        if lobby.is_closed {
            return refuse(Refusal::LobbyClosed, Wait::Lobby(index));
        }
        let limit = lobby.limits[if args.party_size == 1 { 1 } else { 2 }];
        if args.party_size > limit {
            return refuse(Refusal::PartyTooLarge(limit), Wait::Lobby(index));
        }
        if self.is_over_source_limit(args.namespace, args.source, args.source_limit, args.party_size, 0) {
            return refuse(Refusal::TooManyPlayersFromSource, Wait::Shard);
        }
        let decision = if self.players(index) + args.party_size > limit {
            refuse(Refusal::LobbyFull, Wait::Lobby(index))
        } else if lobby.is_ready {
            let slots = Verdict::NewSlots { lobby: index, size: args.party_size };
            Decision::new(
                slots,
                Wait::Lobby(index),
                if args.rejoin_token.is_some() { "joined anew" } else { "reserved" },
            )
        } else {
            Decision::new(Verdict::NewHold { lobby: index }, Wait::Any, "held")
        };
        // Overdue slots in other lobbies may still count for the source.
        let may_be_stale = args.source != 0 && self.namespace_has_overdue(args.namespace);
        if may_be_stale { decision.or(Refusal::TooManyPlayersFromSource) } else { decision }
    }
}
