//! A request that waits for a change, in little memory. When one of its topics changes, Python gets it again.

use std::rc::Rc;

use bytes::Bytes;
use hosting_matchmaker::ClientKey;
use http::{Response, StatusCode};
use tokio::time::Instant;

use crate::limits::body_budget::Reservation;
use crate::long_polls::watches::{Park, Position, Wake};
use crate::passing::http_plane::HttpPlane;
use crate::passing::passed_request::{KeptRequest, is_safe};
use crate::passing::passing_options::PassingOptions;
use crate::passing::upstream::NoResponse;
use crate::requests::internal_headers::{PARK, RAY_ID, RequestSource, SHARE};
use crate::requests::routes::Plane;
use crate::responses::problems::Problem;

pub struct ParkedRequest {
    pub plane: Plane,
    pub kept: KeptRequest,
    pub park: Rc<Park>,
    pub until: Instant,
    pub _reservation: Reservation,
}

impl ParkedRequest {
    /// Waits, and returns the response to a repeat.
    pub async fn response(
        &mut self,
        http_plane: &HttpPlane,
        options: &PassingOptions,
        source: &RequestSource,
    ) -> Result<Response<Bytes>, Problem> {
        let mut stale_in = None;
        loop {
            let is_over = http_plane.watches.wait(&self.park, self.until, &mut stale_in).await == Wake::Expired;
            // Boxed, so that a waiting request takes little memory.
            let response = Box::pin(self.repeat(http_plane, options, source, is_over)).await?;
            match park_of(&response)? {
                Some(park) => self.park = park,
                None => return Ok(response),
            }
        }
    }

    /// Sends the request again, or takes the response to an equal one.
    async fn repeat(
        &self,
        HttpPlane { upstream, watches, repeats }: &HttpPlane,
        options: &PassingOptions,
        source: &RequestSource,
        is_over: bool,
    ) -> Result<Response<Bytes>, Problem> {
        let client = ClientKey::of(source.client);
        let is_safe = is_safe(&self.kept.method);
        let send = || async {
            let request = self.kept.repeated(source, is_over).into_request();
            let unavailable = |reason: NoResponse| reason.problem(self.plane, is_safe);
            let (parts, content) = upstream.send(request, is_safe).await.map_err(unavailable)?.into_parts();
            let unwritten = options.reserve_answer(client, content.bytes(), is_safe)?;
            let content = upstream.receive(content).await.map_err(unavailable)?;
            Ok(Response::from_parts(parts, unwritten.hold(content)))
        };
        let token = self.kept.token();
        if let Some(share) = watches.share_of(&self.park) {
            let send_for_all = || async {
                let response = send().await?;
                // A revocation that the response is newer than must be known before others get it.
                if let Some((_, position)) = shared_by(&response) {
                    watches.reach(position).await;
                }
                Ok(response)
            };
            let (response, is_own) =
                repeats.send(self.kept.key(Some(&share.key), is_over), token, client, send_for_all).await;
            let may_share = |response| {
                shared_by(response)
                    .is_some_and(|(key, position)| key == &*share.key && watches.has_same_rights(&self.park, position))
            };
            if is_own || response.as_ref().map_or(true, may_share) {
                return response;
            }
        }
        repeats.send(self.kept.key(None, is_over), token, client, send).await.0
    }
}

/// Returns the wait of a parked request, or None for a response.
pub fn park_of<T>(response: &Response<T>) -> Result<Option<Rc<Park>>, Problem> {
    if !response.headers().contains_key(RAY_ID) {
        // The answer of uvicorn itself. Its parser refuses some requests that hyper takes, such as unknown methods.
        let is_refused = response.status() == StatusCode::BAD_REQUEST;
        return Err(if is_refused { Problem::NotHttp } else { Problem::Internal });
    }
    let text = |name| response.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(park) = text(PARK) else { return Ok(None) };
    Park::parse(park, text(SHARE)).map(Some).ok_or(Problem::Internal)
}

/// Returns the key of the callers that may share a response, and the last change before it.
fn shared_by<T>(response: &Response<T>) -> Option<(&str, Position<'_>)> {
    let share = response.headers().get(SHARE).filter(|_| !response.headers().contains_key(PARK))?;
    let (key, position) = share.to_str().ok()?.split_once(' ')?;
    Some((key, Position::parse(position)?))
}
