//! Templates and numbers of the codes.

use hosting_core::Id;

use super::*;
use crate::operations::Caller;

const RAY_ID: RayId = RayId::from_bytes([0x12; 16]);
const DIGITS: &str = "12121212121212121212121212121212";

fn templates() -> HashMap<String, AnswerTemplate> {
    let template = |code: &str| AnswerTemplate::new(vec![code.as_bytes().to_vec(), b".".to_vec()]);
    Refusal::SLUGS.iter().map(|code| ((*code).to_owned(), template(code))).collect()
}

fn answers() -> Answers {
    Answers::new(templates()).unwrap_or_else(|code| panic!("{code}"))
}

fn written(template: &AnswerTemplate) -> String {
    let mut out = b"before ".to_vec();
    template.write(b"12", &mut out);
    String::from_utf8(out).expect("text")
}

#[test]
fn ray_id_stands_between_the_parts() {
    let with = |parts: &[&str]| AnswerTemplate::new(parts.iter().map(|part| part.as_bytes().to_vec()).collect());
    assert_eq!(written(&with(&["a"])), "before a");
    assert_eq!(written(&with(&["a ", " b"])), "before a 12 b");
    assert_eq!(written(&with(&["", "-", ""])), "before 12-12");
    assert_eq!(written(&with(&[])), "before ");
}

#[test]
fn each_refusal_has_the_template_of_its_code() {
    let answers = answers();
    let text = |refusal| {
        let mut out = b"before ".to_vec();
        let code = answers.number(&Err(refusal));
        let executed = Executed { caller: Caller::Lobby(Id([1; 16])), code, wait: 0, reply: Reply::Refused };
        answers.write(&executed, RAY_ID, &mut out);
        String::from_utf8(out).expect("text")
    };
    assert_eq!(text(Refusal::PlayerTokenConsumed), format!("before PLAYER_TOKEN_CONSUMED{DIGITS}."));
    assert_eq!(text(Refusal::StorageFull), format!("before STORAGE_FULL{DIGITS}."));
    assert_eq!(text(Refusal::LobbyTokenExpired), format!("before TOKEN_EXPIRED{DIGITS}."));
}

#[test]
fn codes_are_ok_and_all_refusals() {
    let answers = answers();
    assert_eq!(answers.codes()[0], OK);
    assert_eq!(answers.codes()[1..], *Refusal::SLUGS);
    assert_eq!(answers.number(&Ok(())), 0);
    assert_eq!(answers.codes()[answers.number(&Err(Refusal::LobbyFull))], "MATCHMAKER_LOBBY_FULL");
}

#[test]
fn missing_template_is_named() {
    for code in [Refusal::SLUGS[0], "STORAGE_FULL", "TOKEN_EXPIRED"] {
        let mut templates = templates();
        templates.remove(code);
        assert_eq!(Answers::new(templates).err(), Some(code));
    }
}
