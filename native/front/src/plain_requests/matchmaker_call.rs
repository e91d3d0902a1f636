//! The call of the matchmaker that a plain request makes.

use std::net::IpAddr;

use hosting_matchmaker::{Body, Call, Operation, Progress};

use crate::connections::client_address::coordinates;
use crate::plain_requests::plain_request::Head;

impl<'a> Head<'a> {
    pub fn call(&self, operation: Operation, client: IpAddr, trusts_peer: bool, body: &'a [u8]) -> Call<'a> {
        Call {
            operation,
            authorization: self.authorization,
            origin: self.origin,
            idempotency_key: self.idempotency_key,
            media_type: self.media_type,
            content_encoding: None,
            coordinates: self.coordinates.filter(|_| trusts_peer).and_then(coordinates),
            client,
            body: Body::Json(body),
            progress: Progress::default(),
        }
    }
}
