//! Rules of the proto files about the fields of requests. Each broken one is a [`Finding`].

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use hosting_core::MAX_PARTY_SIZE;

use crate::contract::{
    FIND_LOBBY_REQUEST_CLIENT_ADDRESS_PATTERN, FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MAX_LEN,
    FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MIN_LEN, FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_PATTERN,
    FIND_LOBBY_REQUEST_EVENT_CHANNELS_MAX_ITEMS, FIND_LOBBY_REQUEST_GAME_MODES_ITEMS_MAX_BYTES,
    FIND_LOBBY_REQUEST_GAME_MODES_ITEMS_PATTERN, FIND_LOBBY_REQUEST_GAME_MODES_MAX_ITEMS,
    FIND_LOBBY_REQUEST_MAX_PLAYERS_GTE, FIND_LOBBY_REQUEST_MAX_PLAYERS_LTE, FIND_LOBBY_REQUEST_PARTY_SIZE_GTE,
    FIND_LOBBY_REQUEST_PARTY_SIZE_LTE, FIND_LOBBY_REQUEST_REGIONS_ITEMS_MAX_BYTES,
    FIND_LOBBY_REQUEST_REGIONS_ITEMS_PATTERN, FIND_LOBBY_REQUEST_REGIONS_MAX_ITEMS,
    FIND_LOBBY_REQUEST_TAGS_KEYS_MAX_BYTES, FIND_LOBBY_REQUEST_TAGS_KEYS_MIN_LEN, FIND_LOBBY_REQUEST_TAGS_MAX_PAIRS,
    FIND_LOBBY_REQUEST_TAGS_VALUES_MAX_BYTES, JOIN_LOBBY_REQUEST_LOBBY_ID_PATTERN, JOIN_LOBBY_REQUEST_PARTY_SIZE_GTE,
    JOIN_LOBBY_REQUEST_PARTY_SIZE_LTE, LIST_LOBBIES_REQUEST_CURSOR_PATTERN, LIST_LOBBIES_REQUEST_LIMIT_GTE,
    LIST_LOBBIES_REQUEST_LIMIT_LTE, PLAYER_DISCONNECTED_REQUEST_HOLD_MS_LTE, PLAYER_TOKENS_TOKENS_MAX_ITEMS,
};
use crate::field_forms::{json_problem, lobby_id, read_cursor};
use crate::proto;

type Name = Cow<'static, str>;

// The engine and the protos agree.
const _: () = assert!(FIND_LOBBY_REQUEST_PARTY_SIZE_LTE == MAX_PARTY_SIZE as usize);
const _: () = assert!(JOIN_LOBBY_REQUEST_PARTY_SIZE_LTE == MAX_PARTY_SIZE as usize);

/// Characters of the longest text that has two problems: its length and its form.
pub const MATCHED_LENGTH: usize = 4096;

/// One problem of a field. The reason continues a sentence about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub location: Vec<Name>,
    pub word: &'static str,
    pub reason: Cow<'static, str>,
}

impl Finding {
    pub fn new(location: Vec<Name>, word: &'static str, reason: impl Into<Cow<'static, str>>) -> Finding {
        Finding { location, word, reason: reason.into() }
    }

    fn of(field: &'static str, word: &'static str, reason: impl Into<Cow<'static, str>>) -> Finding {
        Finding::new(vec![field.into()], word, reason)
    }
}

enum TextRule {
    MinLength(usize),
    MaxLength(usize),
    MaxBytes(usize),
    Pattern(&'static str, fn(&str) -> bool),
    Address,
}

const MODE: [TextRule; 2] = [
    TextRule::MaxBytes(FIND_LOBBY_REQUEST_GAME_MODES_ITEMS_MAX_BYTES),
    TextRule::Pattern(FIND_LOBBY_REQUEST_GAME_MODES_ITEMS_PATTERN, is_word),
];
const REGION: [TextRule; 2] = [
    TextRule::MaxBytes(FIND_LOBBY_REQUEST_REGIONS_ITEMS_MAX_BYTES),
    TextRule::Pattern(FIND_LOBBY_REQUEST_REGIONS_ITEMS_PATTERN, is_region_id),
];
const TAG_NAME: [TextRule; 2] = [
    TextRule::MinLength(FIND_LOBBY_REQUEST_TAGS_KEYS_MIN_LEN),
    TextRule::MaxBytes(FIND_LOBBY_REQUEST_TAGS_KEYS_MAX_BYTES),
];
const TAG_VALUE: [TextRule; 1] = [TextRule::MaxBytes(FIND_LOBBY_REQUEST_TAGS_VALUES_MAX_BYTES)];
const CHANNEL: [TextRule; 3] = [
    TextRule::MinLength(FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MIN_LEN),
    TextRule::MaxLength(FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MAX_LEN),
    TextRule::Pattern(FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_PATTERN, is_word),
];
const ADDRESS: [TextRule; 2] =
    [TextRule::Pattern(FIND_LOBBY_REQUEST_CLIENT_ADDRESS_PATTERN, is_address_text), TextRule::Address];

impl TextRule {
    fn holds(&self, text: &str) -> bool {
        match self {
            TextRule::MinLength(limit) => text.chars().take(*limit).count() == *limit,
            TextRule::MaxLength(limit) => text.chars().take(limit + 1).count() <= *limit,
            TextRule::MaxBytes(limit) => text.len() <= *limit,
            TextRule::Pattern(_, matches) => matches(text),
            TextRule::Address => is_address(text),
        }
    }

    fn finding(&self, location: Vec<Name>) -> Finding {
        match self {
            TextRule::MinLength(limit) => {
                Finding::new(location, "too-short", format!("must have at least {limit} characters"))
            }
            TextRule::MaxLength(limit) => {
                Finding::new(location, "too-long", format!("must have at most {limit} characters"))
            }
            TextRule::MaxBytes(limit) => Finding::new(location, "too-long", format!("must have at most {limit} bytes")),
            TextRule::Pattern(pattern, _) => Finding::new(location, "invalid", format!("must match {pattern}")),
            TextRule::Address => Finding::new(location, "invalid", "must be an IP address"),
        }
    }
}

fn check_text(findings: &mut Vec<Finding>, text: &str, rules: &[TextRule], location: impl Fn() -> Vec<Name>) {
    for rule in rules.iter().filter(|rule| !rule.holds(text)) {
        let finding = rule.finding(location());
        let is_matched = finding.word != "too-long" || text.chars().nth(MATCHED_LENGTH).is_none();
        findings.push(finding);
        if !is_matched {
            return;
        }
    }
}

fn check_list(findings: &mut Vec<Finding>, name: &'static str, list: &[String], limit: usize, rules: &[TextRule]) {
    if list.len() > limit {
        findings.push(Finding::of(name, "too-many", format!("must have at most {limit} entries")));
    }
    for (index, text) in list.iter().take(limit).enumerate() {
        check_text(findings, text, rules, || vec![name.into(), index.to_string().into()]);
    }
}

fn check_number(findings: &mut Vec<Finding>, name: &'static str, number: Option<u32>, low: usize, high: usize) {
    let Some(number) = number.map(|number| number as usize) else { return };
    if number < low {
        findings.push(Finding::of(name, "too-low", format!("must be at least {low}")));
    }
    if number > high {
        findings.push(Finding::of(name, "too-high", format!("must be at most {high}")));
    }
}

fn check_required(findings: &mut Vec<Finding>, name: &'static str, is_present: bool) {
    if !is_present {
        findings.push(Finding::of(name, "required", "is required"));
    }
}

/// The first token belongs to the caller, and each channel gets one of the others.
fn check_channel_count(findings: &mut Vec<Finding>, channels: &[String], party_size: Option<u32>) {
    let party_size = party_size.unwrap_or(1).max(1) as usize;
    if channels.len() <= FIND_LOBBY_REQUEST_EVENT_CHANNELS_MAX_ITEMS && channels.len() >= party_size {
        let reason = "must have fewer entries than party_size: the first token is the caller's own";
        findings.push(Finding::of("event_channels", "too-many", reason));
    }
}

fn check_captcha(findings: &mut Vec<Finding>, captcha: Option<&proto::Captcha>) {
    use proto::captcha::Provider::{CaptchaA, CaptchaB};
    let (name, answer) = match captcha.and_then(|captcha| captcha.provider.as_ref()) {
        Some(CaptchaA(answer)) => ("captcha_a", answer),
        Some(CaptchaB(answer)) => ("captcha_b", answer),
        None => return,
    };
    if answer.client_response.is_empty() {
        let location = vec!["captcha".into(), name.into(), "client_response".into()];
        findings.push(Finding::new(location, "required", "is required"));
    }
}

fn check_json_object(findings: &mut Vec<Finding>, text: Option<&[u8]>) {
    let text = text.unwrap_or_default();
    if text.is_empty() {
        return;
    }
    let wrong = || ("wrong-type", "must be a JSON object");
    let problem = json_problem(text).or_else(|| (!text.trim_ascii_start().starts_with(b"{")).then(wrong));
    findings.extend(problem.map(|(word, reason)| Finding::of("verification_data", word, reason)));
}

pub fn connected(message: &proto::PlayerConnectedRequest) -> Vec<Finding> {
    let mut findings = Vec::new();
    check_required(&mut findings, "player_token", !message.player_token.is_empty());
    findings
}

pub fn disconnected(message: &proto::PlayerDisconnectedRequest) -> Vec<Finding> {
    let mut findings = Vec::new();
    check_required(&mut findings, "player_token", !message.player_token.is_empty());
    check_number(&mut findings, "hold_ms", message.hold_ms, 0, PLAYER_DISCONNECTED_REQUEST_HOLD_MS_LTE);
    findings
}

pub fn heartbeat(message: &proto::HeartbeatRequest) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tokens = message.player_tokens.as_ref().map_or(&[][..], |list| &list.tokens);
    check_list(&mut findings, "player_tokens", tokens, PLAYER_TOKENS_TOKENS_MAX_ITEMS, &[]);
    findings
}

pub fn join(message: &proto::JoinLobbyRequest) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pattern =
        [TextRule::Pattern(JOIN_LOBBY_REQUEST_LOBBY_ID_PATTERN, |id| id.is_empty() || lobby_id(id).is_some())];
    check_required(&mut findings, "lobby_id", !message.lobby_id.is_empty());
    check_text(&mut findings, &message.lobby_id, &pattern, || vec!["lobby_id".into()]);
    check_captcha(&mut findings, message.captcha.as_ref());
    check_json_object(&mut findings, message.verification_data.as_deref());
    let (low, high) = (JOIN_LOBBY_REQUEST_PARTY_SIZE_GTE, JOIN_LOBBY_REQUEST_PARTY_SIZE_LTE);
    check_number(&mut findings, "party_size", message.party_size, low, high);
    check_client_address(&mut findings, message.client_address.as_deref());
    check_channels(&mut findings, &message.event_channels);
    if message.rejoin_token.is_some() && message.party_size.is_some_and(|party_size| party_size > 1) {
        let reason = "must be 1 together with rejoin_token: a token is one player's";
        findings.push(Finding::of("party_size", "not-allowed", reason));
    }
    check_channel_count(&mut findings, &message.event_channels, message.party_size);
    findings
}

pub fn find(message: &proto::FindLobbyRequest) -> Vec<Finding> {
    let mut findings = Vec::new();
    let modes = &message.game_modes;
    check_required(&mut findings, "game_modes", !modes.is_empty());
    let known = &modes[..modes.len().min(FIND_LOBBY_REQUEST_GAME_MODES_MAX_ITEMS)];
    let mut of_modes = Vec::new();
    check_list(&mut of_modes, "game_modes", modes, FIND_LOBBY_REQUEST_GAME_MODES_MAX_ITEMS, &MODE);
    if known.iter().enumerate().any(|(number, mode)| known[..number].contains(mode)) {
        let after_size = usize::from(modes.len() > known.len());
        of_modes.insert(after_size, Finding::of("game_modes", "not-unique", "must not repeat an entry"));
    }
    findings.extend(of_modes);
    check_list(&mut findings, "regions", &message.regions, FIND_LOBBY_REQUEST_REGIONS_MAX_ITEMS, &REGION);
    if message.tags.len() > FIND_LOBBY_REQUEST_TAGS_MAX_PAIRS {
        let reason = format!("must have at most {FIND_LOBBY_REQUEST_TAGS_MAX_PAIRS} entries");
        findings.push(Finding::of("tags", "too-many", reason));
    }
    for (name, value) in message.tags.iter().take(FIND_LOBBY_REQUEST_TAGS_MAX_PAIRS) {
        let location = || vec!["tags".into(), name.clone().into()];
        check_text(&mut findings, name, &TAG_NAME, location);
        check_text(&mut findings, value, &TAG_VALUE, location);
    }
    let (low, high) = (FIND_LOBBY_REQUEST_MAX_PLAYERS_GTE, FIND_LOBBY_REQUEST_MAX_PLAYERS_LTE);
    check_number(&mut findings, "max_players", message.max_players, low, high);
    check_captcha(&mut findings, message.captcha.as_ref());
    check_json_object(&mut findings, message.verification_data.as_deref());
    let (low, high) = (FIND_LOBBY_REQUEST_PARTY_SIZE_GTE, FIND_LOBBY_REQUEST_PARTY_SIZE_LTE);
    check_number(&mut findings, "party_size", message.party_size, low, high);
    check_client_address(&mut findings, message.client_address.as_deref());
    check_channels(&mut findings, &message.event_channels);
    check_channel_count(&mut findings, &message.event_channels, message.party_size);
    findings
}

fn check_client_address(findings: &mut Vec<Finding>, address: Option<&str>) {
    if let Some(address) = address {
        check_text(findings, address, &ADDRESS, || vec!["client_address".into()]);
    }
}

fn check_channels(findings: &mut Vec<Finding>, channels: &[String]) {
    check_list(findings, "event_channels", channels, FIND_LOBBY_REQUEST_EVENT_CHANNELS_MAX_ITEMS, &CHANNEL);
}

// The library protovalidate words the rules of the other messages.

pub fn closed(message: &proto::SetLobbyClosedRequest) -> Vec<Finding> {
    let missing = || Finding::of("is_closed", "required", "value is required");
    message.is_closed.is_none().then(missing).into_iter().collect()
}

pub fn list(message: &proto::ListLobbiesRequest) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (low, high) = (LIST_LOBBIES_REQUEST_LIMIT_GTE, LIST_LOBBIES_REQUEST_LIMIT_LTE);
    if let Some(limit) = message.limit.map(|limit| limit as usize).filter(|limit| !(low..=high).contains(limit)) {
        let word = if limit < low { "too-low" } else { "too-high" };
        let reason = format!("must be greater than or equal to {low} and less than or equal to {high}");
        findings.push(Finding::of("limit", word, reason));
    }
    if message.cursor.as_deref().is_some_and(|cursor| read_cursor(cursor).is_none()) {
        let reason = format!("does not match regex pattern `{LIST_LOBBIES_REQUEST_CURSOR_PATTERN}`");
        findings.push(Finding::of("cursor", "invalid", reason));
    }
    findings
}

/// Checks the id in a path.
pub fn lobby_of_path(id: &str) -> Vec<Finding> {
    let reason = || format!("does not match regex pattern `{JOIN_LOBBY_REQUEST_LOBBY_ID_PATTERN}`");
    let invalid = || Finding::of("lobby_id", "invalid", reason());
    lobby_id(id).is_none().then(invalid).into_iter().collect()
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn is_region_id(id: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    id.split('-').all(is_part)
}

fn is_address_text(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
}

/// Returns whether a text is an address, with or without a zone.
fn is_address(text: &str) -> bool {
    match text.split_once('%') {
        Some((address, zone)) => !zone.is_empty() && !zone.contains('%') && address.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<IpAddr>().is_ok(),
    }
}

#[cfg(test)]
mod tests;
