//! Options and limits of the requests that hyper reads and that are passed on.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use hosting_matchmaker::ClientKey;

use crate::limits::body_budget::{BodyBudget, Full, Reservation};
use crate::limits::failed_authentications::FailedAuthentications;
use crate::requests::routes::{ByPlane, Routes};
use crate::responses::cors::Cors;
use crate::responses::problems::Problem;

/// Memory of a parked request beside its path, headers and message.
const PARKED_BYTES: usize = 4 * 1024;

pub struct PassingOptions {
    pub routes: Routes,
    pub cors: Cors,
    pub data_socket: PathBuf,
    pub control_socket: PathBuf,
    pub answer_timeout: Duration,
    /// Limits of the requests that run at a time.
    pub requests_max: ByPlane<usize>,
    pub limits: RequestLimits,
    pub bodies: Arc<BodyBudget>,
    pub answers: Arc<BodyBudget>,
    pub failed_authentications: FailedAuthentications,
    /// Number of parked requests of all threads.
    pub parked: Arc<AtomicUsize>,
    pub parked_bytes: Arc<BodyBudget>,
}

impl PassingOptions {
    /// Counts a parked request, which keeps `bytes`, until the reservation is dropped.
    pub fn reserve_parked(&self, client: ClientKey, bytes: usize) -> Result<Reservation, Full> {
        let mut reservation = self.parked_bytes.reserve(client);
        reservation.grow_to(PARKED_BYTES + bytes)?;
        Ok(reservation)
    }

    /// Counts the bytes of a response until they are written. Without room, a client can ask again after a safe request,
    /// and gets the response to any other one.
    pub fn reserve_answer(&self, client: ClientKey, bytes: usize, is_safe: bool) -> Result<Reservation, Problem> {
        let mut unwritten = self.answers.reserve(client);
        match unwritten.add_if_room(bytes) {
            Err(full) if is_safe => return Err(Problem::unread(full)),
            Err(_) => unwritten.add(bytes),
            Ok(()) => {}
        }
        Ok(unwritten)
    }
}

#[derive(Clone, Copy)]
pub struct RequestLimits {
    pub url_bytes_max: usize,
    pub headers_bytes_max: usize,
    /// For a request without an operation.
    pub body_bytes_max: usize,
}
