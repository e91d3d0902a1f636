//! Names of the front's own errors in tests. Several have the same code.

use hosting_front::Problem;

const NAMES: [(Problem, &str); 25] = [
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

/// Returns the name of the front's own error with this code and sentence.
pub fn name_of(code: &str, detail: &str) -> Option<&'static str> {
    let is_it = |problem: &Problem| {
        let error = problem.error();
        (error.code.slug(), error.detail()) == (code, detail)
    };
    NAMES.iter().find(|(problem, _)| is_it(problem)).map(|(_, name)| *name)
}
