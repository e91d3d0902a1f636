//! Errors that the front finds itself, over HTTP and gRPC.

use std::collections::HashMap;

use bytes::Bytes;
use http::Response;

use crate::bearer_token::BearerProblem;
use crate::body_budget::Full;
use crate::codes::Codes;
use crate::error_response::{ErrorResponse, ErrorTemplate};
use crate::grpc::CallError;
use crate::permits::Overload;
use crate::ray_id::RayId;
use crate::routes::Plane;

/// Error that the front finds itself, without the engine and without Python.
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
    /// All problems, with their names in the Python contract.
    pub const ALL: [(Problem, &str); 25] = [
        (Problem::NotHttp, "not_http"),
        (Problem::TwoHosts, "two_hosts"),
        (Problem::NoHost, "no_host"),
        (Problem::UriTooLong, "uri_too_long"),
        (Problem::HeadersTooLarge, "headers_too_large"),
        (Problem::BodyTooLarge, "body_too_large"),
        (Problem::NoMessage, "no_message"),
        (Problem::RequestTimeout, "request_timeout"),
        (Problem::ShuttingDown, "shutting_down"),
        (Problem::Internal, "internal"),
        (Problem::Overloaded, "overloaded"),
        (Problem::OverloadedBodies, "overloaded_bodies"),
        (Problem::OverloadedUnread, "overloaded_unread"),
        (Problem::OverloadedAll, "overloaded_all"),
        (Problem::OverloadedAddress, "overloaded_address"),
        (Problem::OverloadedToken, "overloaded_token"),
        (Problem::OverloadedNoOwnToken, "overloaded_no_own_token"),
        (Problem::ControlPlaneUnavailable, "control_plane_unavailable"),
        (Problem::ControlPlaneUnavailableSent, "control_plane_unavailable_sent"),
        (Problem::DeadlineExceeded, "deadline_exceeded"),
        (Problem::TokenMissing, "token_missing"),
        (Problem::TokenInvalid, "token_invalid"),
        (Problem::TokenNotBearer, "token_not_bearer"),
        (Problem::RateLimitedFailures, "rate_limited_failures"),
        (Problem::NotFound, "not_found"),
    ];
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

/// The responses to all problems, with the numbers of their codes.
pub struct Problems(Vec<(usize, ErrorResponse)>);

impl Problems {
    /// Takes the templates of all problems. Returns an error that names the missing or wrong one.
    pub fn new(templates: &mut HashMap<String, ErrorTemplate>, codes: &Codes) -> Result<Problems, String> {
        let take = |(_, name): &(Problem, &str)| {
            let template = templates.remove(*name).ok_or_else(|| format!("{name} has no response"))?;
            let code = codes.number(&template.code).ok_or_else(|| format!("unknown code {}", template.code))?;
            Ok((code, ErrorResponse::new(template).map_err(|problem| format!("{name}: {problem}"))?))
        };
        Problem::ALL.iter().map(take).collect::<Result<_, _>>().map(Problems)
    }

    fn get(&self, problem: Problem) -> &ErrorResponse {
        &self.0[problem as usize].1
    }

    pub fn code(&self, problem: Problem) -> usize {
        self.0[problem as usize].0
    }

    pub fn over_grpc(&self, problem: Problem) -> &CallError {
        &self.get(problem).over_grpc
    }

    pub fn response(&self, problem: Problem, ray_id: RayId) -> Response<Bytes> {
        self.get(problem).response(ray_id)
    }

    /// Returns the bytes of a whole HTTP/1.1 response, after which the connection closes.
    pub fn last_response(&self, problem: Problem, ray_id: RayId) -> Vec<u8> {
        self.get(problem).http1("connection: close\r\n").join(&ray_id.digits()[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn templates() -> HashMap<String, ErrorTemplate> {
        let template = |(_, name): &(Problem, &str)| ErrorTemplate {
            code: name.to_uppercase(),
            http_status: 400,
            headers: Vec::new(),
            body: Vec::new(),
            grpc_status: 3,
            message: String::new(),
            details: Vec::new(),
        };
        Problem::ALL.iter().map(|row| (row.1.to_owned(), template(row))).collect()
    }

    #[test]
    fn each_problem_has_the_template_of_its_name() {
        let codes = Codes::new(Problem::ALL.iter().map(|(_, name)| name.to_uppercase()));
        let problems = Problems::new(&mut templates(), &codes).unwrap_or_else(|problem| panic!("{problem}"));
        for (problem, name) in Problem::ALL {
            assert_eq!(codes.names()[problems.code(problem)], name.to_uppercase());
        }
        let mut templates = templates();
        templates.remove("internal");
        assert_eq!(Problems::new(&mut templates, &codes).err().as_deref(), Some("internal has no response"));
    }
}
