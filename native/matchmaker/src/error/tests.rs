//! Forms of errors.

use serde_json::{Value, json};

use super::*;

fn problem(error: &ServiceError) -> Value {
    serde_json::from_slice(&error.problem_json("12ab")).expect("JSON")
}

/// Returns the details of an error by the name of their type.
fn details(error: &ServiceError) -> (i32, String, BTreeMap<String, Vec<u8>>) {
    let status = Status::decode(&error.grpc_status()[..]).expect("a status");
    let name = |url: &str| url.strip_prefix("type.googleapis.com/google.rpc.").expect("a type of Google").to_owned();
    let details = status.details.into_iter().map(|detail| (name(&detail.type_url), detail.value)).collect();
    (status.code, status.message, details)
}

fn field_violations(error: &ServiceError) -> Vec<(String, String, String)> {
    let bytes = &details(error).2["BadRequest"];
    let violations = BadRequest::decode(&bytes[..]).expect("a detail").field_violations;
    violations.into_iter().map(|one| (one.field, one.description, one.reason)).collect()
}

#[test]
fn problem_without_details_omits_their_fields() {
    let row = Code::MatchmakerLobbyFull.row();
    let text = format!(
        r#"{{"type":"urn:hosting:problem:matchmaker-lobby-full","title":"{}","status":{},"detail":"{}","code":"{}","message":"{}","ray_id":"12ab"}}"#,
        row.title, row.http_status, row.detail, row.slug, row.detail
    );
    let error = ServiceError::from(Code::MatchmakerLobbyFull);
    assert_eq!(String::from_utf8(error.problem_json("12ab")).expect("text"), text);
    assert_eq!(details(&error).2.keys().map(String::as_str).collect::<Vec<_>>(), ["ErrorInfo"]);
}

#[test]
fn problem_has_its_details() {
    let error = ServiceError::from(Code::BodyInvalid)
        .with_detail("One \"sentence\".")
        .with_problem(FieldProblem::new(&["tags", "map"], "too-long", None))
        .with_problem(FieldProblem::new(&[], "not-json", Some("is cut off")))
        .with_metadata("limit", "client")
        .with_metadata("exit_code", "3");
    let expected = json!({
        "type": "urn:hosting:problem:body-invalid",
        "title": Code::BodyInvalid.row().title,
        "status": 400,
        "detail": "One \"sentence\".",
        "code": "BODY_INVALID",
        "message": "One \"sentence\".",
        "ray_id": "12ab",
        "metadata": {"limit": "client", "exit_code": "3"},
        "errors": [
            {"path": ["tags", "map", "too-long"], "message": "tags.map is too long"},
            {"path": ["not-json"], "message": "the body is cut off"},
        ],
    });
    assert_eq!(problem(&error), expected);
}

#[test]
fn status_has_the_details_of_the_problem() {
    let error = ServiceError::from(Code::RateLimited)
        .with_metadata("limit", "client")
        .with_retry_after(1.2)
        .with_problem(FieldProblem::new(&["player_tokens", "3"], "invalid", None));
    let row = Code::RateLimited.row();
    let (code, message, details) = details(&error);
    assert_eq!((code, &*message), (row.grpc_status, row.detail));
    let info = ErrorInfo::decode(&details["ErrorInfo"][..]).expect("a detail");
    assert_eq!((&*info.reason, &*info.domain), ("RATE_LIMITED", "hosting"));
    assert_eq!(info.metadata, BTreeMap::from([("limit".to_owned(), "client".to_owned())]));
    let retry = RetryInfo::decode(&details["RetryInfo"][..]).expect("a detail");
    assert_eq!(retry.retry_delay.map(|delay| delay.seconds), Some(2));
    let violation = ("player_tokens.3", "player_tokens.3 does not have the right form", "INVALID");
    let violation = (violation.0.to_owned(), violation.1.to_owned(), violation.2.to_owned());
    assert_eq!(field_violations(&error), [violation]);
    assert_eq!(details.len(), 3);
}

#[test]
fn many_problems_are_counted_in_place_of_their_texts() {
    let with = |count: usize| {
        (0..count).fold(ServiceError::from(Code::BodyInvalid), |error, index| {
            error.with_problem(FieldProblem::new(&["player_tokens", &index.to_string()], "invalid", None))
        })
    };
    let is_whole = |count: usize| field_violations(&with(count)).iter().all(|(_, _, reason)| reason == "INVALID");
    let fitting = (1..).find(|count| !is_whole(count + 1)).expect("a bound");
    assert_eq!(field_violations(&with(fitting)).len(), fitting);
    for count in [fitting + 1, fitting + 2, 1_000] {
        let shown = field_violations(&with(count));
        assert_eq!(shown.len(), fitting + 1);
        let omitted = (String::new(), format!("and {} more problems", count - fitting), "TOO_MANY".to_owned());
        assert_eq!(shown.last(), Some(&omitted), "{count}");
        let bytes = details(&with(count)).2["BadRequest"].len();
        let last = GRPC_PROBLEM_FRAME_BYTES + omitted.1.len() + omitted.2.len() + 4;
        assert!(bytes <= GRPC_PROBLEMS_BYTES_MAX + last, "{bytes}");
        assert!(bytes + 100 > GRPC_PROBLEMS_BYTES_MAX, "{bytes}");
    }
    assert_eq!(problem(&with(1_000))["errors"].as_array().map(Vec::len), Some(1_000), "HTTP has them all");
}

#[test]
fn waits_are_whole_seconds() {
    for (wait_s, expected) in [(0.0, 1), (0.1, 1), (1.0, 1), (1.001, 2), (90.0, 90)] {
        assert_eq!(ServiceError::from(Code::RateLimited).with_retry_after(wait_s).retry_after_s(), Some(expected));
    }
    assert_eq!(ServiceError::from(Code::Overloaded).retry_after_s(), Code::Overloaded.row().retry_after_s);
}

#[test]
fn refusals_have_their_codes() {
    for slug in Refusal::SLUGS {
        assert!(ERRORS.iter().any(|row| row.slug == *slug), "{slug}");
    }
    for refusal in [
        Refusal::StorageFull,
        Refusal::IdempotencyKeyReused,
        Refusal::LobbyNotFound,
        Refusal::LobbyStartFailed(EndReason::Exited, None),
        Refusal::PartyTooLarge(4),
        Refusal::TokenInListInvalid([1].into()),
        Refusal::TooManyMockPlayers { retry_after_ms: 1 },
        Refusal::PlayerTokenConsumed,
        Refusal::LobbyTokenExpired,
        Refusal::LeaseInUse,
        Refusal::PortsNotBound,
    ] {
        assert_eq!(ServiceError::from(&refusal).code.slug(), refusal.slug());
    }
}

#[test]
fn refusals_have_their_details() {
    let party = problem(&(&Refusal::PartyTooLarge(4)).into());
    let errors = json!([{"path": ["party_size", "too-high"], "message": "party_size must be at most 4"}]);
    assert_eq!(party["errors"], errors);
    let list = problem(&(&Refusal::TokenInListInvalid([0, 7].into())).into());
    let invalid = |index: &str| {
        json!({
            "path": ["player_tokens", index, "invalid"],
            "message": format!("player_tokens.{index} does not have the right form"),
        })
    };
    assert_eq!(list["errors"], json!([invalid("0"), invalid("7")]));
    let failed = problem(&(&Refusal::LobbyStartFailed(EndReason::StartTimeout, Some(-9))).into());
    assert_eq!(failed["metadata"], json!({"reason": "start_timeout", "exit_code": "-9"}));
    let failed = problem(&(&Refusal::LobbyStartFailed(EndReason::Exited, None)).into());
    assert_eq!(failed["metadata"], json!({"reason": "exited"}));
    let mock = ServiceError::from(&Refusal::TooManyMockPlayers { retry_after_ms: 1_500 });
    assert_eq!((problem(&mock)["metadata"].clone(), mock.retry_after_s()), (json!({"limit": "mock_players"}), Some(2)));
}

/// The numbers of the codes are positions in the table.
#[test]
fn codes_are_rows_of_the_table() {
    for (code, slug) in
        [(Code::BodyInvalid, "BODY_INVALID"), (Code::Internal, "INTERNAL"), (Code::PlayerRemoved, "PLAYER_REMOVED")]
    {
        assert_eq!(code.slug(), slug);
    }
    assert_eq!(Code::PlayerRemoved as usize + 1, ERRORS.len());
}
