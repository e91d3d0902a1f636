//! Lobbies that the service starts: made for whoever found none, for whoever wants one of his own, and to have some ready
//! (decisions 5.3, 5.5, 5.8). Class: new place.

use super::fleet::limits_of;
use super::{Class, Engine, accept, has_credit, refuse};
use crate::command::{Answer, Context, Creation, Id, Lsn, Make};
use crate::error::Refusal;
use crate::event::Event;
use crate::lease::Lease;
use crate::lobby::Limit;

impl Engine {
    /// Makes a lobby for nobody. Limits are cut as those of attach.
    ///
    /// Refusals: `StorageFull`, `TooManyLobbies`, `PortsExhausted`.
    ///
    /// # Panics
    /// When its id is one that the engine knows: ids are fresh random ones.
    pub fn start_idle(&mut self, cx: &mut Context<'_>, make: &Make<'_>) -> Answer<Id> {
        self.begin(cx);
        self.drain_part(cx, 0);
        match self.make(cx, make) {
            Ok(_) => accept(make.lobby.id, self.last_lsn),
            Err((refusal, wait)) => refuse(refusal, wait),
        }
    }

    /// The lobby that somebody wants so many places in, if one may be made and they fit; `impossible` is what is said
    /// where nothing can be started.
    pub(super) fn make_wanted(
        &mut self,
        cx: &mut Context<'_>,
        namespace: Id,
        creation: &Creation<'_>,
        (limit, places): (Limit, u32),
        impossible: Refusal,
    ) -> Result<u32, (Refusal, Lsn)> {
        match creation {
            Creation::Prevented => Err((Refusal::NoAvailableLobbies, self.last_lsn)),
            Creation::Impossible { lobby_count_max } => {
                self.require_one_more(cx, namespace, *lobby_count_max)?;
                Err((impossible, self.last_lsn))
            }
            Creation::Possible(make) => {
                // Before anything is made: whoever calls holds his places in it without another look.
                let limit = limits_of(&make.lobby)[limit as usize];
                if places > limit {
                    return Err((Refusal::PartyTooLarge(limit), self.last_lsn));
                }
                self.make(cx, make)
            }
        }
    }

    fn require_one_more(
        &mut self,
        cx: &mut Context<'_>,
        namespace: Id,
        lobby_count_max: u32,
    ) -> Result<(), (Refusal, Lsn)> {
        while self.lobbies_of(namespace) >= u64::from(lobby_count_max) {
            if !self.drain_part(cx, 0) {
                return Err((Refusal::TooManyLobbies, self.last_lsn));
            }
        }
        Ok(())
    }

    /// The lobby, what starts it, and its ports, or nothing of it.
    fn make(&mut self, cx: &mut Context<'_>, make: &Make<'_>) -> Result<u32, (Refusal, Lsn)> {
        assert!(self.lobbies.number_of(&self.seed, make.lobby.id).is_none(), "a lobby id is used once");
        self.require_one_more(cx, make.lobby.namespace, make.lobby.lobby_count_max)?;
        self.leases.wake(self.time.now());
        let Some(ports) = self.leases.draw(make.lobby.namespace, make.ports, make.random) else {
            return Err((Refusal::PortsExhausted, self.last_lsn));
        };
        let mut made = self.lobby_made(&make.lobby, make.publicity);
        made.ports.clear();
        let number = made.lobby;
        let lease = Lease {
            namespace: make.lobby.namespace,
            region: make.lobby.region.into(),
            is_server: false,
            ports,
            is_over: false,
            changed: 0,
        };
        let events = [
            Event::LobbyMade(Box::new(made), None),
            Event::LobbyStarts { lobby: number, lobby_config: make.lobby_config.unwrap_or_default() },
            Event::PortsLeased { owner: make.lobby.id, lease: Box::new(lease) },
        ];
        let mut bytes = Vec::new();
        events.iter().for_each(|event| event.encode(&mut bytes));
        if !has_credit(cx, Class::NewPlace, bytes.len() as u64) {
            return Err((Refusal::StorageFull, 0));
        }
        events.iter().for_each(|event| self.emit(cx, event));
        // Whoever is told of the lobby has to find its ports after a crash.
        self.lobbies.set_lsn(number, self.last_lsn);
        Ok(number)
    }
}
