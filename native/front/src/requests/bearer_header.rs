//! The token in the headers of a request.

use hosting_matchmaker::{BearerProblem, token_of};
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};

/// Returns the token of a request. Several headers are read as one, which has no token.
pub fn bearer_token(headers: &HeaderMap) -> Result<&str, BearerProblem> {
    let mut values = headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
    let token = token_of(values.next())?;
    if values.next().is_some() { Err(BearerProblem::Malformed) } else { Ok(token) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
