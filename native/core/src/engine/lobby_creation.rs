//! Creation of lobbies that the service starts.

use super::lobby_lifecycle::limits_of;
use super::{CreditClass, Engine, accept, has_credit, refuse};
use crate::command::{Attach, CommandOutcome, Context, CreationPolicy, Id, LobbyTemplate, Lsn, Publicity};
use crate::journal_event::Event;
use crate::lease_definition::LeaseDefinition;
use crate::lobby::Limit;
use crate::refusal::Refusal;

impl Engine {
    /// Creates a lobby without players.
    ///
    /// Refusals: `StorageFull`, `TooManyLobbies`, `PortsExhausted`.
    ///
    /// # Panics
    /// If the engine knows the id.
    pub fn start_idle(&mut self, cx: &mut Context<'_>, template: &LobbyTemplate<'_>) -> CommandOutcome<Id> {
        self.begin_command(cx);
        self.expire_part(cx, 0);
        match self.create_lobby(cx, template) {
            Ok(_) => accept(template.lobby.id, self.last_lsn),
            Err((refusal, wait)) => refuse(refusal, wait),
        }
    }

    /// Creates a lobby for a request of so many `slots`, if the policy allows it. `impossible` is the refusal for
    /// [`CreationPolicy::Impossible`].
    pub(super) fn create_lobby_for(
        &mut self,
        cx: &mut Context<'_>,
        namespace: Id,
        creation: &CreationPolicy<'_>,
        (limit, slots): (Limit, u32),
        impossible: Refusal,
    ) -> Result<u32, (Refusal, Lsn)> {
        match creation {
            CreationPolicy::Prevented => Err((Refusal::NoAvailableLobbies, self.last_lsn)),
            CreationPolicy::Impossible { lobby_count_max } => {
                self.require_one_more(cx, namespace, *lobby_count_max)?;
                Err((impossible, self.last_lsn))
            }
            CreationPolicy::Possible(template) => {
                let limit = limits_of(&template.lobby)[limit as usize];
                if slots > limit {
                    return Err((Refusal::PartyTooLarge(limit), self.last_lsn));
                }
                self.create_lobby(cx, template)
            }
        }
    }

    fn require_one_more(
        &mut self,
        cx: &mut Context<'_>,
        namespace: Id,
        lobby_count_max: u32,
    ) -> Result<(), (Refusal, Lsn)> {
        while self.live_lobby_count(namespace) >= u64::from(lobby_count_max) {
            if !self.expire_part(cx, 0) {
                return Err((Refusal::TooManyLobbies, self.last_lsn));
            }
        }
        Ok(())
    }

    /// Emits the events of a new lobby and its ports, all or none.
    fn create_lobby(&mut self, cx: &mut Context<'_>, template: &LobbyTemplate<'_>) -> Result<u32, (Refusal, Lsn)> {
        assert!(self.lobbies.number_of(&self.seed, template.lobby.id).is_none(), "a lobby id is used once");
        self.require_one_more(cx, template.lobby.namespace, template.lobby.lobby_count_max)?;
        let Attach { id, namespace, region, .. } = template.lobby;
        let lease = LeaseDefinition::new(namespace, region, false, template.ports);
        let Some(leased) = self.lease_event(id, lease, template.random) else {
            return Err((Refusal::PortsExhausted, self.last_lsn));
        };
        let publicity = template.trial_ms.map_or(template.publicity, |_| Publicity::Private);
        let mut definition = Box::new(self.lobby_definition(&template.lobby, publicity));
        definition.ports.clear();
        definition.is_join_enabled &= template.trial_ms.is_none();
        let number = definition.lobby;
        let created = match template.trial_ms {
            Some(trial_ms) => Event::TrialCreated { definition, until: self.time.now().saturating_add(trial_ms) },
            None => Event::LobbyCreated { definition, stamp: None },
        };
        let events = [
            created,
            Event::LobbyManaged { lobby: number, lobby_config: template.lobby_config.unwrap_or_default() },
            leased,
        ];
        let mut bytes = Vec::new();
        events.iter().for_each(|event| event.encode(&mut bytes));
        if !has_credit(cx, CreditClass::NewSlot, bytes.len() as u64) {
            return Err((Refusal::StorageFull, 0));
        }
        events.iter().for_each(|event| self.emit(cx, event));
        // Answers about the lobby wait for its port lease too, so that a crash cannot lose the ports.
        self.lobbies.set_lsn(number, self.last_lsn);
        Ok(number)
    }
}
