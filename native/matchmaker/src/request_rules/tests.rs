//! Forms of texts, against the patterns in the proto files.

use proptest::prelude::*;
use regex::Regex;

use super::*;

/// A pattern, and the function that replaces it.
type Form = (&'static str, fn(&str) -> bool);

const FORMS: [Form; 6] = [
    (FIND_LOBBY_REQUEST_GAME_MODES_ITEMS_PATTERN, is_word),
    (FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_PATTERN, is_word),
    (FIND_LOBBY_REQUEST_REGIONS_ITEMS_PATTERN, is_region_id),
    (FIND_LOBBY_REQUEST_CLIENT_ADDRESS_PATTERN, is_address_text),
    (LIST_LOBBIES_REQUEST_CURSOR_PATTERN, |text| read_cursor(text).is_some()),
    (JOIN_LOBBY_REQUEST_LOBBY_ID_PATTERN, |text| lobby_id(text).is_some()),
];

fn check_forms(text: &str) {
    for (pattern, has_form) in FORMS {
        let expected = Regex::new(pattern).expect("a pattern").is_match(text);
        assert_eq!(has_form(text), expected, "{text:?} and {pattern}");
    }
}

proptest! {
    #[test]
    fn forms_are_those_of_the_patterns(text in r"[a-zA-F0-9_.:\-\n\u{e4}]{0,18}") {
        check_forms(&text);
    }

    #[test]
    fn ids_have_the_form_of_the_pattern(text in r"[0-9a-fA]{8}-[0-9a-f]{3,4}-?[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}") {
        check_forms(&text);
    }
}
