//! HTTP client of the hosting service.

use std::time::Duration;

use serde_json::Value;
use ureq::{Agent, http::Uri};

pub struct Api {
    agent: Agent,
    url: String,
    bearer: String,
}

#[derive(Default)]
pub struct ApiResponse {
    /// HTTP status, or 0 without a response. The service may have processed that call.
    pub status: u16,
    pub body: Value,
    retry_after: Duration,
}

impl Api {
    pub fn new(url: &str, token: &str) -> Self {
        let config = Agent::config_builder().input_buffer_size(16 << 10).output_buffer_size(16 << 10);
        let config = config.http_status_as_error(false).max_redirects(0).proxy(None).build();
        Self { agent: config.new_agent(), url: url.trim_end_matches('/').to_owned(), bearer: format!("Bearer {token}") }
    }

    pub fn call(&self, path: &str, body: &Value, key: Option<&str>, timeout: Duration) -> ApiResponse {
        let url = format!("{}/matchmaker/{path}", self.url);
        let request = if path == "lobbies/closed" { self.agent.put(url) } else { self.agent.post(url) };
        let request = request.header("authorization", &self.bearer).header("content-type", "application/json");
        let request = if let Some(key) = key { request.header("idempotency-key", key) } else { request };
        let response =
            request.config().timeout_global(Some(timeout)).build().send(body.to_string()).and_then(|mut response| {
                let seconds = response.headers().get("retry-after").and_then(|text| text.to_str().ok()?.parse().ok());
                let (status, retry_after) = (response.status().as_u16(), Duration::from_secs(seconds.unwrap_or(0)));
                let body = serde_json::from_slice(&response.body_mut().read_to_vec()?).unwrap_or_default();
                Ok(ApiResponse { status, body, retry_after })
            });
        response.unwrap_or_default()
    }
}

impl ApiResponse {
    /// Returns whether the outcome of the call is known. If not, repeat the call under the same key.
    pub fn is_outcome_known(&self) -> bool {
        !matches!(self.status, 0 | 408 | 429 | 500..)
    }

    pub fn error_code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("UNKNOWN")
    }

    /// Returns the pause before the next attempt: at most 2 s with jitter, and at least `Retry-After`.
    pub fn retry_delay(&self, attempts: u32) -> Duration {
        let maximum = Duration::from_millis(100 << attempts.min(5)).min(Duration::from_secs(2));
        maximum.mul_f64(rand::random_range(0.5..1.0)).max(self.retry_after.min(Duration::from_secs(30)))
    }
}

pub fn check_http_url(url: &str) -> Result<String, String> {
    let https_problem = "is https, which this program does not speak: give it the plain http address of the service, \
                 on the same machine or network";
    match url.split_once("://") {
        Some(("http", _)) if url.parse::<Uri>().is_ok() => Ok(url.to_owned()),
        Some(("https", _)) => Err(https_problem.to_owned()),
        _ => Err("must be like http://127.0.0.1:8080".to_owned()),
    }
}

/// Returns a random key for all attempts of one operation.
pub fn idempotency_key() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delay_grows_to_two_seconds_and_honours_retry_after() {
        let mut response = ApiResponse::default();
        let pauses: Vec<_> = (0..40).map(|attempts| response.retry_delay(attempts).as_millis()).collect();
        assert!((50..=100).contains(&pauses[0]) && (100..=200).contains(&pauses[1]), "{pauses:?}");
        assert!(pauses[5..].iter().all(|retry_delay| (1000..=2000).contains(retry_delay)), "{pauses:?}");
        response.retry_after = Duration::from_secs(7);
        assert_eq!(response.retry_delay(0), Duration::from_secs(7));
        response.retry_after = Duration::from_secs(7_000);
        assert_eq!(response.retry_delay(0), Duration::from_secs(30));
    }

    #[test]
    fn missing_response_or_service_failure_decides_nothing() {
        let is_outcome_known = |status| ApiResponse { status, ..ApiResponse::default() }.is_outcome_known();
        assert!([0, 408, 429, 500, 503].iter().all(|status| !is_outcome_known(*status)));
        assert!([200, 400, 401, 404, 409, 410].iter().all(|status| is_outcome_known(*status)));
    }

    #[test]
    fn only_plain_http_urls_are_accepted() {
        assert!(
            ["http://127.0.0.1:8080", "http://[::1]:81/", "http://a.example/v1"]
                .iter()
                .all(|url| check_http_url(url).is_ok())
        );
        assert!(
            ["", "api", "ftp://a", "http://", "http://a b", "https://a"].iter().all(|url| check_http_url(url).is_err())
        );
    }
}
