//! A request that waits for a change, in little memory. When one of its topics changes, Python gets it again.

use std::rc::Rc;

use bytes::Bytes;
use http::Response;
use tokio::time::Instant;

use crate::answer_body::AnswerBody;
use crate::body_budget::Reservation;
use crate::internal_headers::{PARK, SHARE};
use crate::passed_request::{KeptRequest, is_safe};
use crate::passing::{Exchange, HttpPlane, PassedBody, park_of, unavailable};
use crate::problems::Problem;
use crate::routes::Plane;
use crate::watches::{Park, Position, Wake};
use hosting_matchmaker::ClientKey;

pub struct ParkedRequest {
    pub exchange: Exchange,
    pub waiting: Waiting,
}

/// The wait of a request.
pub struct Waiting {
    pub plane: Plane,
    pub kept: KeptRequest,
    pub park: Rc<Park>,
    pub until: Instant,
    pub _reservation: Reservation,
}

impl ParkedRequest {
    /// Waits, and returns the response to a repeat.
    pub async fn answer(self: Box<Self>) -> Response<AnswerBody> {
        let ParkedRequest { mut exchange, mut waiting } = *self;
        let context = exchange.context.clone();
        let outcome = tokio::select! {
            biased;
            outcome = waiting.response(&exchange) => outcome,
            () = context.end_of_grace() => Err(Problem::ShuttingDown),
        };
        let answered = outcome.map(|response| exchange.answer_with(response.map(PassedBody::Whole)));
        exchange.finish(answered)
    }
}

impl Waiting {
    async fn response(&mut self, exchange: &Exchange) -> Result<Response<Bytes>, Problem> {
        let HttpPlane { watches, .. } = exchange.context.passing.plane(self.plane);
        let mut stale_in = None;
        loop {
            let is_over = watches.wait(&self.park, self.until, &mut stale_in).await == Wake::Expired;
            // Boxed, so that a waiting request takes little memory.
            let response = Box::pin(self.repeat(exchange, is_over)).await?;
            match park_of(&response)? {
                Some(park) => self.park = park,
                None => return Ok(response),
            }
        }
    }

    /// Sends the request again, or takes the response to an equal one.
    async fn repeat(&self, exchange: &Exchange, is_over: bool) -> Result<Response<Bytes>, Problem> {
        let passing = &exchange.context.passing;
        let HttpPlane { upstream, watches, repeats, .. } = passing.plane(self.plane);
        let client = ClientKey::of(exchange.client);
        let is_safe = is_safe(&self.kept.method);
        let send = || async {
            let request = self.kept.repeated(exchange, is_over).into_request();
            let unavailable = |reason| unavailable(self.plane, is_safe, reason);
            let (parts, content) = upstream.send(request, is_safe).await.map_err(unavailable)?.into_parts();
            let unwritten = passing.options.reserve_answer(client, content.bytes(), is_safe)?;
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

/// Returns the key of the callers that may share a response, and the last change before it.
fn shared_by<T>(response: &Response<T>) -> Option<(&str, Position<'_>)> {
    let share = response.headers().get(SHARE).filter(|_| !response.headers().contains_key(PARK))?;
    let (key, position) = share.to_str().ok()?.split_once(' ')?;
    Some((key, Position::parse(position)?))
}
