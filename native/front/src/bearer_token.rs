//! Form of the token in an `authorization` header. Only Python knows whether a token is valid.

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};

const SCHEME: &[u8] = b"bearer ";
const TOKEN_BYTES_MAX: usize = 160;
const KINDS: [&str; 7] = ["cloud", "env", "pub", "dev", "lobby", "player", "link"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BearerProblem {
    Missing,
    OtherScheme,
    Malformed,
}

/// Returns the token of a request. Python reads several headers as one, which has no token.
pub fn bearer_token(headers: &HeaderMap) -> Result<&str, BearerProblem> {
    let mut values = headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
    let token = token_of(values.next())?;
    if values.next().is_some() { Err(BearerProblem::Malformed) } else { Ok(token) }
}

/// Returns the token of a header in its usual spelling.
pub fn plain_token(header: &[u8]) -> Option<&str> {
    std::str::from_utf8(header.strip_prefix(b"Bearer ")?).ok()
}

/// Returns the token of the value of one header.
pub fn token_of(header: Option<&[u8]>) -> Result<&str, BearerProblem> {
    let header = header.filter(|header| !header.is_empty()).ok_or(BearerProblem::Missing)?;
    let (scheme, token) = header.split_at_checked(SCHEME.len()).ok_or(BearerProblem::OtherScheme)?;
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return Err(BearerProblem::OtherScheme);
    }
    let token = std::str::from_utf8(token).map_err(|_| BearerProblem::Malformed)?.trim_matches(' ');
    let is_secret = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let has_form = token.split_once('_').is_some_and(|(kind, secret)| KINDS.contains(&kind) && is_secret(secret));
    if has_form && token.len() <= TOKEN_BYTES_MAX { Ok(token) } else { Err(BearerProblem::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_header() {
        let long = format!("Bearer env_{}", "x".repeat(TOKEN_BYTES_MAX - 4));
        let too_long = format!("{long}x");
        let rows: [(&str, Result<&str, BearerProblem>); 14] = [
            ("Bearer env_a-B_9", Ok("env_a-B_9")),
            ("bEARER  lobby_x ", Ok("lobby_x")),
            (&long, Ok(&long[7..])),
            (&too_long, Err(BearerProblem::Malformed)),
            ("", Err(BearerProblem::Missing)),
            ("Basic abc", Err(BearerProblem::OtherScheme)),
            ("Bearer", Err(BearerProblem::OtherScheme)),
            ("env_a", Err(BearerProblem::OtherScheme)),
            ("Bearer ", Err(BearerProblem::Malformed)),
            ("Bearer env_", Err(BearerProblem::Malformed)),
            ("Bearer env", Err(BearerProblem::Malformed)),
            ("Bearer other_x", Err(BearerProblem::Malformed)),
            ("Bearer env_a b", Err(BearerProblem::Malformed)),
            ("Bearer env_\u{e4}", Err(BearerProblem::Malformed)),
        ];
        for (header, expected) in rows {
            assert_eq!(token_of(Some(header.as_bytes())), expected, "{header}");
        }
    }

    #[test]
    fn token_of_one_header() {
        let value = HeaderValue::from_static("Bearer env_x");
        let mut headers = HeaderMap::new();
        assert_eq!(bearer_token(&headers), Err(BearerProblem::Missing));
        headers.append(AUTHORIZATION, value.clone());
        assert_eq!(bearer_token(&headers), Ok("env_x"));
        headers.append(AUTHORIZATION, value);
        assert_eq!(bearer_token(&headers), Err(BearerProblem::Malformed));
    }
}
