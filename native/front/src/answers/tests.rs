//! Templates of the refusals.

use hosting_core::Id;

use super::*;
use crate::codes::Codes;
use crate::operations::Caller;

const RAY_ID: RayId = RayId::from_bytes([0x12; 16]);
const DIGITS: &str = "12121212121212121212121212121212";

fn templates() -> HashMap<String, ErrorTemplate> {
    let template = |code: &str| ErrorTemplate {
        code: code.to_owned(),
        http_status: 400,
        headers: Vec::new(),
        body: vec![format!("{code} ").into(), b".".to_vec()],
        grpc_status: 9,
        message: String::new(),
        details: Vec::new(),
    };
    Refusal::SLUGS.iter().map(|code| ((*code).to_owned(), template(code))).collect()
}

fn answers() -> Answers {
    Answers::new(&mut templates()).unwrap_or_else(|problem| panic!("{problem}"))
}

#[test]
fn each_refusal_has_the_template_of_its_code() {
    let answers = answers();
    let text = |refusal| {
        let mut out = b"before ".to_vec();
        let code = Codes::of_engine(&Err(refusal));
        let executed = Executed { caller: Caller::Lobby(Id([1; 16])), code, wait: 0, reply: Reply::Refused };
        answers.write(&executed, RAY_ID, &mut out);
        let response = answers.response(&executed, RAY_ID);
        assert!(out.starts_with(b"before HTTP/1.1 400 ") && out.ends_with(response.body()));
        String::from_utf8(response.into_body().to_vec()).expect("text")
    };
    assert_eq!(text(Refusal::PlayerTokenConsumed), format!("PLAYER_TOKEN_CONSUMED {DIGITS}."));
    assert_eq!(text(Refusal::StorageFull), format!("STORAGE_FULL {DIGITS}."));
    assert_eq!(text(Refusal::LobbyTokenExpired), format!("TOKEN_EXPIRED {DIGITS}."));
}

#[test]
fn missing_template_is_named() {
    for code in [Refusal::SLUGS[0], "STORAGE_FULL", "TOKEN_EXPIRED"] {
        let mut templates = templates();
        templates.remove(code);
        assert_eq!(Answers::new(&mut templates).err(), Some(format!("{code} has no response")));
    }
}
