//! Operations that native code decides.

use crate::authorization::Callers;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Connected,
    Disconnected,
    Heartbeat,
    Join,
    Find,
    Ready,
    Closed,
    SetState,
    GetState,
    List,
    Regions,
    Statistics,
}

impl Operation {
    pub const ALL: [Operation; 12] = [
        Operation::Connected,
        Operation::Disconnected,
        Operation::Heartbeat,
        Operation::Join,
        Operation::Find,
        Operation::Ready,
        Operation::Closed,
        Operation::SetState,
        Operation::GetState,
        Operation::List,
        Operation::Regions,
        Operation::Statistics,
    ];

    /// Name of the operation in metrics and in idempotency keys.
    pub fn slug(self) -> &'static str {
        match self {
            Operation::Connected => "connected",
            Operation::Disconnected => "disconnected",
            Operation::Heartbeat => "heartbeat",
            Operation::Join => "join",
            Operation::Find => "find",
            Operation::Ready => "ready",
            Operation::Closed => "closed",
            Operation::SetState => "set_state",
            Operation::GetState => "get_state",
            Operation::List => "list",
            Operation::Regions => "regions",
            Operation::Statistics => "statistics",
        }
    }

    pub fn of_slug(slug: &str) -> Option<Operation> {
        Operation::ALL.into_iter().find(|operation| operation.slug() == slug)
    }

    pub fn callers(self) -> Callers {
        use Operation::{Find, GetState, Join, List, Regions, Statistics};
        match self {
            Find | Join | List | Regions | Statistics => Callers::Clients,
            GetState => Callers::StateReaders,
            _ => Callers::LobbyServers,
        }
    }

    /// Returns the callers of an operation, also of one that Python decides.
    pub fn callers_of(slug: &str) -> Option<Callers> {
        match slug {
            "create" => Some(Callers::Clients),
            "attach" | "detach" => Some(Callers::Operators),
            _ => Operation::of_slug(slug).map(Operation::callers),
        }
    }

    /// Returns whether the operation changes nothing. Its request has no body.
    pub fn is_read(self) -> bool {
        use Operation::{GetState, List, Regions, Statistics};
        matches!(self, GetState | List | Regions | Statistics)
    }

    /// Returns whether a successful response says more than that the request was executed.
    pub fn has_content(self) -> bool {
        self.is_read() || matches!(self, Operation::Join | Operation::Find)
    }

    /// Returns whether an idempotency key has an effect. Repeats of the other operations are harmless.
    pub fn uses_key(self) -> bool {
        use Operation::{Connected, Disconnected, Find, Join};
        matches!(self, Connected | Disconnected | Join | Find)
    }
}
