//! Errors that the front finds itself, without the engine and without Python.

use hosting_matchmaker::{BearerProblem, Code, ServiceError};

use crate::limits::body_budget::Full;
use crate::limits::permit_queue::Overload;
use crate::requests::routes::Plane;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    NotHttp,
    TwoHosts,
    NoHost,
    UriTooLong,
    HeadersTooLarge,
    BodyTooLarge,
    /// A gRPC call has no message.
    NoMessage,
    RequestTimeout,
    ShuttingDown,
    Internal,
    Overloaded,
    OverloadedBodies,
    /// The client has too many unread responses.
    OverloadedUnread,
    OverloadedAll,
    OverloadedAddress,
    OverloadedToken,
    OverloadedNoOwnToken,
    ControlPlaneUnavailable,
    /// The control plane may have carried out the request.
    ControlPlaneUnavailableSent,
    DeadlineExceeded,
    TokenMissing,
    TokenInvalid,
    TokenNotBearer,
    RateLimitedFailures,
    NotFound,
}

impl Problem {
    pub fn overloaded(plane: Plane, overload: Overload) -> Problem {
        match overload {
            _ if plane == Plane::Data => Problem::Overloaded,
            Overload::All => Problem::OverloadedAll,
            Overload::Address => Problem::OverloadedAddress,
            Overload::Token => Problem::OverloadedToken,
            Overload::NoOwnToken => Problem::OverloadedNoOwnToken,
        }
    }

    /// Refuses a further response of the front's budget of unread responses.
    pub fn unread(full: Full) -> Problem {
        match full {
            Full::Client => Problem::OverloadedUnread,
            Full::Total => Problem::Overloaded,
        }
    }

    pub fn code(self) -> Code {
        match self {
            Problem::NotHttp | Problem::TwoHosts | Problem::NoHost => Code::HeaderInvalid,
            Problem::UriTooLong => Code::UriTooLong,
            Problem::HeadersTooLarge => Code::HeadersTooLarge,
            Problem::BodyTooLarge => Code::BodyTooLarge,
            Problem::NoMessage => Code::BodyInvalid,
            Problem::RequestTimeout => Code::RequestTimeout,
            Problem::ShuttingDown => Code::ShuttingDown,
            Problem::Internal => Code::Internal,
            Problem::Overloaded
            | Problem::OverloadedBodies
            | Problem::OverloadedUnread
            | Problem::OverloadedAll
            | Problem::OverloadedAddress
            | Problem::OverloadedToken
            | Problem::OverloadedNoOwnToken => Code::Overloaded,
            Problem::ControlPlaneUnavailable | Problem::ControlPlaneUnavailableSent => Code::ControlPlaneUnavailable,
            Problem::DeadlineExceeded => Code::DeadlineExceeded,
            Problem::TokenMissing => Code::TokenMissing,
            Problem::TokenInvalid | Problem::TokenNotBearer => Code::TokenInvalid,
            Problem::RateLimitedFailures => Code::RateLimited,
            Problem::NotFound => Code::NotFound,
        }
    }

    /// Returns the error in the form of both transports.
    pub fn error(self) -> ServiceError {
        let error = ServiceError::from(self.code());
        let too_many = |scope: &str| {
            format!("Too many requests {scope} are in progress. Try again after Retry-After, with growing pauses.")
        };
        match self {
            Problem::NotHttp => error.with_detail("The request is not valid HTTP/1.1."),
            Problem::TwoHosts => error.with_detail("Send one Host header: a request with several is ambiguous."),
            Problem::NoHost => error.with_detail("Send a Host header: HTTP/1.1 requires one."),
            Problem::NoMessage => error.with_detail("Send one message."),
            Problem::TokenNotBearer => BearerProblem::OtherScheme.into(),
            Problem::OverloadedBodies => error.with_detail(
                "Your address sends too much at once. Try again after Retry-After, less at a time.",
            ),
            Problem::OverloadedUnread => error.with_detail(
                "Your address has too many responses that it has not read. Read them, and try again.",
            ),
            Problem::OverloadedAll => error.with_detail(too_many("of all clients")),
            Problem::OverloadedAddress => error.with_detail(too_many("of this client address")),
            Problem::OverloadedToken => error.with_detail(too_many("of this token")),
            Problem::OverloadedNoOwnToken => {
                error.with_detail(too_many("from your address with a public token, or without a token,"))
            }
            Problem::ControlPlaneUnavailableSent => error.with_detail(
                "The request may have been carried out. Repeat it with the same Idempotency-Key: it is then carried out \
                 at most once.",
            ),
            Problem::RateLimitedFailures => ServiceError::rate_limited("failed_authentication", 1.0).with_detail(
                "Too many failed authentications from your address. Try again after Retry-After with a valid token.",
            ),
            _ => error,
        }
    }
}

impl From<BearerProblem> for Problem {
    fn from(problem: BearerProblem) -> Problem {
        match problem {
            BearerProblem::Missing => Problem::TokenMissing,
            BearerProblem::OtherScheme => Problem::TokenNotBearer,
            BearerProblem::Malformed => Problem::TokenInvalid,
        }
    }
}

impl From<Full> for Problem {
    fn from(full: Full) -> Problem {
        match full {
            Full::Client => Problem::OverloadedBodies,
            Full::Total => Problem::Overloaded,
        }
    }
}
