//! Form of the token in an `authorization` header.

/// Prefix of a token that all players of a game share.
pub const PUBLIC_TOKEN: &str = "pub_";
const SCHEME: &[u8] = b"bearer ";
const TOKEN_BYTES_MAX: usize = 160;
const KINDS: [&str; 7] = ["cloud", "env", "pub", "dev", "lobby", "player", "link"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BearerProblem {
    Missing,
    OtherScheme,
    Malformed,
}

/// Returns the token of the value of one header.
pub fn token_of(header: Option<&[u8]>) -> Result<&str, BearerProblem> {
    let header = header.filter(|header| !header.is_empty()).ok_or(BearerProblem::Missing)?;
    let (scheme, token) = header.split_at_checked(SCHEME.len()).ok_or(BearerProblem::OtherScheme)?;
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return Err(BearerProblem::OtherScheme);
    }
    let token = std::str::from_utf8(token).map_err(|_| BearerProblem::Malformed)?.trim_matches(' ');
    let has_form = split(token).is_some_and(|(kind, secret)| KINDS.contains(&kind) && is_secret(secret));
    if has_form && token.len() <= TOKEN_BYTES_MAX { Ok(token) } else { Err(BearerProblem::Malformed) }
}

/// Returns the kind of a token that has the form of one, such as `pub`.
pub fn kind_of(token: &str) -> &str {
    split(token).map_or(token, |(kind, _)| kind)
}

/// Returns the kind and the secret of a token. A kind is short, so that a plain loop finds its end first.
fn split(token: &str) -> Option<(&str, &str)> {
    let end = token.bytes().position(|byte| byte == b'_')?;
    Some((&token[..end], &token[end + 1..]))
}

/// Without an early end, the check takes many bytes at once.
fn is_secret(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() | (byte == b'_') | (byte == b'-');
    !text.is_empty() && text.bytes().fold(true, |all, byte| all & is_allowed(byte))
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
}
