//! The model's answers to create, and to find without a fit.

use hosting_core::{HoldId, Id, Refusal};

use super::commands::{Command, CreateArgs, CreationArgs};
use super::decisions::{Decision, Verdict, Wait, refuse};
use super::effects::Lsns;
use super::model_state::Model;

impl Model {
    pub fn decide_create(&self, args: &CreateArgs) -> Decision {
        if self.is_over_source_limit(args.namespace, args.source, args.source_limit, args.party_size, 0) {
            return refuse(Refusal::TooManyPlayersFromSource, Wait::Shard);
        }
        let limit = if args.party_size == 1 { 1 } else { 2 };
        self.decide_making(args.namespace, &args.creation, (limit, args.party_size), Refusal::CapacityExhausted)
    }

    pub fn decide_making(
        &self,
        namespace: Id,
        creation: &CreationArgs,
        (limit, party_size): (usize, u32),
        impossible: Refusal,
    ) -> Decision {
        let is_full = |most: u32| self.live_lobbies(namespace).count() as u32 >= most;
        match creation {
            CreationArgs::Prevented => refuse(Refusal::NoAvailableLobbies, Wait::Shard),
            CreationArgs::Possible(template) if party_size > template.lobby.limits[limit] => {
                refuse(Refusal::PartyTooLarge(template.lobby.limits[limit]), Wait::Shard)
            }
            CreationArgs::Impossible { lobby_count_max } if is_full(*lobby_count_max) => {
                refuse(Refusal::TooManyLobbies, Wait::Shard)
            }
            CreationArgs::Possible(template) if is_full(template.lobby.lobby_count_max) => {
                refuse(Refusal::TooManyLobbies, Wait::Shard)
            }
            CreationArgs::Impossible { .. } => refuse(impossible, Wait::Shard),
            CreationArgs::Possible(template) => {
                Decision::new(Verdict::Created(template.lobby.id), Wait::Any, "created")
            }
        }
    }

    pub fn created(
        &mut self,
        command: &Command,
        hold: HoldId,
        (id, lobby_token): (Id, &str),
        lsns: Lsns,
    ) -> Result<(), String> {
        let creation = match command {
            Command::Find(args, _) => &args.creation,
            Command::Create(args, _) => &args.creation,
            _ => return Err("created for no request".to_owned()),
        };
        let CreationArgs::Possible(template) = creation else {
            return Err("created where creation was not possible".to_owned());
        };
        self.push_lobby(&template.lobby, (id, lobby_token), lsns)?;
        let lobby = self.lobbies.len() - 1;
        (self.lobbies[lobby].is_ours, self.lobbies[lobby].is_public) = (true, template.is_public);
        self.hold(hold, lobby, command);
        Ok(())
    }
}
