//! A request that waits for a change, in little memory. When one of its topics changes, Python gets it again.

use std::rc::Rc;

use bytes::Bytes;
use http::Response;
use tokio::time::Instant;

use crate::answer_body::AnswerBody;
use crate::passed_request::{KeptRequest, is_safe};
use crate::passing::{Exchange, PassedBody, PassedPlane, park_of, unavailable};
use crate::problems::Problem;
use crate::routes::Plane;
use crate::upstream::NoResponse;
use crate::watches::{Park, Wake};

pub struct ParkedRequest {
    pub exchange: Exchange,
    pub waiting: Waiting,
}

/// What a request waits for.
pub struct Waiting {
    pub plane: Plane,
    pub kept: KeptRequest,
    pub park: Rc<Park>,
    pub until: Instant,
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
        let context = &exchange.context;
        let PassedPlane { watches, .. } = context.passing.plane(self.plane);
        let mut stale_in = None;
        loop {
            let wake = if context.is_stopping.get() {
                Wake::Expired
            } else {
                watches.wait(&self.park, self.until, &mut stale_in).await
            };
            let is_over = wake == Wake::Expired || context.is_stopping.get();
            // Boxed, so that a waiting request takes little memory.
            let repeated = Box::pin(self.repeat(exchange, is_over)).await;
            let response = repeated.map_err(|reason| unavailable(self.plane, is_safe(&self.kept.method), reason))?;
            match park_of(&response)? {
                Some(park) => self.park = park,
                None => return Ok(response),
            }
        }
    }

    async fn repeat(&self, exchange: &Exchange, is_over: bool) -> Result<Response<Bytes>, NoResponse> {
        let PassedPlane { upstream, repeats, .. } = exchange.context.passing.plane(self.plane);
        let send = || {
            let request = self.kept.repeated(exchange, is_over).into_request();
            upstream.send(request, is_safe(&self.kept.method))
        };
        repeats.send(self.kept.key(is_over), send).await
    }
}
